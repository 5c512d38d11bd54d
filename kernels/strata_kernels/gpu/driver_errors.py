"""What can go wrong between us and a driver. Texts say what failed, numbers, the library's words, what to try."""

from __future__ import annotations

from strata_kernels.gpu.driver_tables import BAD_IMAGES, LOST


class DriverUnavailable(RuntimeError):
    """There is no such device here, or no driver that we can use."""


class DriverError(RuntimeError):
    """A call that the library refused. `number`: its status; `lost`: nothing more can run in this process."""

    def __init__(self, call: str, number: int, words: str) -> None:
        self.call, self.number, self.words = call, number, words
        self.lost = number in LOST
        super().__init__(f"{call} failed with status {number} ({words})" + _advice(number))


class OutOfDeviceMemory(MemoryError):
    """`asked` and `free` in bytes; `where`: whose memory."""

    def __init__(self, asked: int, free: int, where: str) -> None:
        self.asked, self.free = asked, free
        super().__init__(
            f"{where} has no room for {asked / 2**20:,.1f} MiB more: {free / 2**20:,.1f} MiB are free; "
            "use a smaller context, fewer layers on the device or a smaller quantisation"
        )


class MissingVariant(RuntimeError):
    """A kernel's form that the bundle does not hold. `key`: which."""

    def __init__(self, key: str, bundle: str) -> None:
        self.key = key
        super().__init__(
            f"{bundle} has no {key}; nothing is compiled while running: build it by `llmrun kernels build --model REF`"
        )


class WrongBundle(RuntimeError):
    """A bundle that is not for this device, or that another version of llmrun made."""


def _advice(number: int) -> str:
    if number in LOST:
        return "; the device cannot be used by this process any more: start it again, and report this if it comes back"
    if number in BAD_IMAGES:
        return "; the code is not for this device or driver: build it again by `llmrun kernels build`"
    return ""
