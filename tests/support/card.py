"""A card that only compiles, in the place of a device that is missing: numba types and lowers as ever,
and its compiler and linker, which need a driver, only count their calls.
"""

from types import SimpleNamespace

from numba import cuda, float64

from ustat_pg.engines.device import device_kernel

made = {"compiled": 0}
"""How often each was called."""


def pretend(patch, capability=(8, 0)):
    """Have a card of this capability, unless there is a real one."""
    if cuda.is_available():
        return
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import devices, driver, nvvm, runtime

    def image(cubin):
        return SimpleNamespace(get_function=lambda name: cubin)

    card = SimpleNamespace(compute_capability=capability, id=0)
    context = SimpleNamespace(device=card, create_module_image=image)
    patch.setattr(devices, "get_context", lambda *_: context)
    patch.setattr(dispatcher, "get_current_device", lambda: card)
    patch.setattr(runtime.runtime, "get_version", lambda: (13, 0))
    library = SimpleNamespace(
        data_layout="", get_ir_version=lambda: (2, 0, 3, 1), supported_ccs=(capability,)
    )
    patch.setattr(nvvm, "NVVM", lambda: library)
    patch.setattr(nvvm, "compile_ir", _compile)
    patch.setattr(driver.Linker, "new", _Linker)


def _compile(texts, **_):
    made["compiled"] += 1
    return "".join(texts).encode()


class _Linker:
    lto = False
    info_log = ""

    def __init__(self, **_):
        self.code = b""

    def add_ptx(self, code):
        self.code += code

    def complete(self):
        return self.code


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
