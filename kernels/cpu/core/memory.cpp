// Memory hints: huge pages for packed weights, and letting go of file pages that have been packed.
#include <stdio.h>
#include <string.h>

#include "../abi.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__linux__)
namespace {

// Whether [from, to) lies in one read-only mapping of a file: only then do dropped pages come back unchanged.
bool read_only_file(uintptr_t from, uintptr_t to) {
  FILE* maps = fopen("/proc/self/maps", "r");
  if (!maps) return false;
  char line[512];
  bool found = false;
  while (!found && fgets(line, sizeof line, maps)) {
    unsigned long start = 0, end = 0, inode = 0;
    char rights[8] = "";
    if (sscanf(line, "%lx-%lx %7s %*x %*s %lu", &start, &end, rights, &inode) != 4) continue;
    if (from >= start && to <= end) {
      found = inode != 0 && rights[1] == '-';
      break;
    }
  }
  fclose(maps);
  return found;
}

}  // namespace
#endif

extern "C" void llmrun_want_huge_pages(void* address, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = (reinterpret_cast<uintptr_t>(address) + size - 1) / size * size;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(address) + static_cast<uintptr_t>(bytes)) / size * size;
  if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#else
  (void)address, (void)bytes;
#endif
}

extern "C" int64_t llmrun_drop_mapped(void* address, int64_t bytes) {
#if defined(__linux__)
  const uintptr_t size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = (reinterpret_cast<uintptr_t>(address) + size - 1) / size * size;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(address) + static_cast<uintptr_t>(bytes)) / size * size;
  if (to <= from || !read_only_file(from, to)) return 0;
  return madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED) == 0 ? static_cast<int64_t>(to - from) : 0;
#else
  (void)address, (void)bytes;
  return 0;
#endif
}
