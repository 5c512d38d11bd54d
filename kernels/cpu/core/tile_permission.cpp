// Asking the system for tile registers. Linux hands the memory for them to a process only when asked; the answer covers
// all its threads, those to come too.
#include "isa.h"

#if defined(LLMRUN_HAVE_X86) && defined(__linux__)
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#endif

namespace llmrun {

#if defined(LLMRUN_HAVE_X86) && defined(__linux__)
const char* tiles_refused() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, its number of the tile registers' state
  static const std::string why =
      syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0
          ? ""
          : std::string("the operating system refuses tile registers: ") + strerror(errno);
  return why.c_str();
}
#else
const char* tiles_refused() { return "tile registers are used on Linux only"; }
#endif

}  // namespace llmrun
