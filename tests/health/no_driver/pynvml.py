"""In place of the binding of NVML, on a machine without NVIDIA's driver."""


class NVMLError(Exception): ...


class NVMLError_LibraryNotFound(NVMLError): ...


def nvmlInit() -> None:
    raise NVMLError_LibraryNotFound
