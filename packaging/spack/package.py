# A recipe for Spack. It was not built: it needs a release on PyPI, and its checksum.
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHpcelastic(PythonPackage):
    """Elastic, fault-tolerant PyTorch training on SLURM clusters; rendezvous through files, no server."""

    homepage = "https://github.com/hpcelastic/hpcelastic"
    pypi = "hpcelastic/hpcelastic-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0", sha256="0" * 64)  # of the release

    variant("torch", default=True, description="with PyTorch, which workers need")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling", type="build")
    depends_on("py-hatch-fancy-pypi-readme", type="build")
    depends_on("py-cloudpickle@3:", type=("build", "run"))
    depends_on("py-filelock@3.16:", type=("build", "run"))
    depends_on("py-nvidia-ml-py@12.560:", type=("build", "run"))
    depends_on("py-pydantic@2.10:", type=("build", "run"))
    depends_on("py-isal@1.7:", type=("build", "run"), when="target=x86_64:")
    depends_on("py-isal@1.7:", type=("build", "run"), when="target=aarch64:")
    depends_on("py-pyyaml@6:", type=("build", "run"))
    depends_on("py-rich@13.7:", type=("build", "run"))
    depends_on("py-shtab@1.7:", type=("build", "run"))
    depends_on("py-submitit@1.5.2:1.5", type=("build", "run"))
    depends_on("py-torch@2.10:", type=("build", "run"), when="+torch")
