"""A card that only compiles, in the place of a device that is missing: numba types and lowers as ever, its
compiler, which needs a library, repeats what it is given, and nothing is linked or loaded.
"""

from types import SimpleNamespace

from numba import cuda, float64

from ustat_pg.engines.device import device_kernel


def pretend(patch, capability=(8, 0)):
    """Have a card of this capability, unless there is a real one."""
    if cuda.is_available():
        return
    from numba.cuda import codegen, dispatcher
    from numba.cuda.cudadrv import devices, nvrtc, nvvm, runtime

    module = SimpleNamespace(initialized=True)
    module.get_function = lambda _: SimpleNamespace(module=module)
    card = SimpleNamespace(compute_capability=capability, id=0)
    context = SimpleNamespace(device=card, create_module_image=lambda *_: module)
    patch.setattr(devices, "get_context", lambda *_: context)
    patch.setattr(dispatcher, "get_current_device", lambda: card)
    patch.setattr(runtime.runtime, "get_version", lambda: (13, 0))
    library = SimpleNamespace(
        data_layout="", get_ir_version=lambda: (2, 0, 3, 1), supported_ccs=(capability,)
    )
    patch.setattr(nvvm, "NVVM", lambda: library)
    patch.setattr(nvvm, "compile_ir", lambda texts, **_: "".join(texts).encode())
    patch.setattr(codegen.CUDACodeLibrary, "get_cubin", lambda code, cc=None: code.get_asm_str(cc))
    # That of the package numba-cuda.
    patch.setattr(nvrtc, "get_arch_option", lambda *words: str(words), raising=False)


def storing(number, **options):
    """A kernel with a constant."""

    @device_kernel(**options)
    def kernel(out):
        out[0] = number

    return kernel


def compiled(kernel):
    """The code of a kernel, and how often it was found and made."""
    code = kernel.compile((float64[:],)).inspect_asm(None)
    hits, misses = (sum(number.values()) for number in kernel.stats[1:])
    return code, hits, misses
