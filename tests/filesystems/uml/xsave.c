// For LD_PRELOAD into a user-mode Linux kernel older than 6.13 on a host whose XSAVE area is larger than the 2,696 bytes
// that such a kernel knows (processors with AMX: 11,008). Linux answers PTRACE_SETREGSET for NT_X86_XSTATE with EFAULT
// unless it is given the whole area (since 5.14), so the kernel's part is laid over what the process has.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long (*ptrace_function)(int, int, void *, void *);

static char whole[1 << 16] __attribute__((aligned(64)));

static long set_part(ptrace_function next, int pid, void *kind, const struct iovec *part)
{
    struct iovec area = {whole, sizeof whole};
    long failed = next(PTRACE_GETREGSET, pid, kind, &area);
    if (failed)
        return failed;
    memcpy(whole, part->iov_base, part->iov_len < area.iov_len ? part->iov_len : area.iov_len);
    return next(PTRACE_SETREGSET, pid, kind, &area);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    int pid = va_arg(arguments, int);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    static ptrace_function next;
    if (!next)
        next = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE)
        return set_part(next, pid, address, data);
    return next(request, pid, address, data);
}
