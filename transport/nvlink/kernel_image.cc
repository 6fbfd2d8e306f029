#include "transport/nvlink/kernel_image.h"

#ifdef HEADRACE_KERNELS_FATBIN
// Eight bytes is what a fatbin is aligned to.
__asm__(
    ".section .rodata\n"
    ".balign 8\n"
    ".hidden headrace_kernels_fatbin\n"
    ".global headrace_kernels_fatbin\n"
    "headrace_kernels_fatbin:\n"
    ".incbin \"" HEADRACE_KERNELS_FATBIN
    "\"\n"
    ".previous\n");
extern "C" const char headrace_kernels_fatbin[];
#endif

namespace headrace::transport {

#ifdef HEADRACE_KERNELS_FATBIN
const void* KernelImage() { return headrace_kernels_fatbin; }
bool HasKernels() { return true; }
#else
const void* KernelImage() { return "// The kernels were not compiled.\n"; }
bool HasKernels() { return false; }
#endif

}  // namespace headrace::transport
