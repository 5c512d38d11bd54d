#include "isa.h"

#include <string.h>

#include <string>

#if defined(LLMRUN_HAVE_X86)
#include <cpuid.h>
#endif
#if defined(LLMRUN_HAVE_NEON) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(LLMRUN_HAVE_NEON) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace llmrun {

#if defined(LLMRUN_HAVE_X86)
namespace amx {
bool tiles_work();  // isa/tiles.cpp
}
#endif

namespace {

struct Features {
  bool avx2 = false, fma = false, f16c = false, avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false,
       avx512_vnni = false, avx512_bf16 = false, avx_vnni = false, amx_tile = false, amx_int8 = false,
       amx_bf16 = false, neon = false, dotprod = false, i8mm = false;
};

#if defined(LLMRUN_HAVE_X86)
uint64_t saved_registers() {  // XCR0
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

Features detect() {
  Features f;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return f;
  const uint64_t saved = saved_registers();
  const bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6, tiles = (saved & 0x60000) == 0x60000;
  f.fma = ymm && (c & bit_FMA);
  f.f16c = ymm && (c & bit_F16C);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = ymm && (b & bit_AVX2);
  f.avx512f = zmm && (b & bit_AVX512F);
  f.avx512bw = zmm && (b & bit_AVX512BW);
  f.avx512dq = zmm && (b & bit_AVX512DQ);
  f.avx512vl = zmm && (b & bit_AVX512VL);
  f.avx512_vnni = zmm && (c & bit_AVX512VNNI);
  f.amx_tile = tiles && (d & (1u << 24));
  f.amx_int8 = tiles && (d & (1u << 25));
  f.amx_bf16 = tiles && (d & (1u << 22));
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx_vnni = ymm && (a & (1u << 4));
    f.avx512_bf16 = zmm && (a & (1u << 5));
  }
  return f;
}
#elif defined(LLMRUN_HAVE_NEON) && defined(__linux__)
Features detect() {
  Features f;
  f.neon = true;
  f.dotprod = (getauxval(AT_HWCAP) & (1ul << 20)) != 0;  // HWCAP_ASIMDDP
  f.i8mm = (getauxval(AT_HWCAP2) & (1ul << 13)) != 0;    // HWCAP2_I8MM
  return f;
}
#elif defined(LLMRUN_HAVE_NEON) && defined(__APPLE__)
bool system_flag(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value;
}

Features detect() {
  Features f;
  f.neon = true;
  f.dotprod = system_flag("hw.optional.arm.FEAT_DotProd");
  f.i8mm = system_flag("hw.optional.arm.FEAT_I8MM");
  return f;
}
#else
Features detect() { return Features(); }
#endif

const Features& features() {
  static const Features found = detect();
  return found;
}

std::string join(std::initializer_list<std::pair<bool, const char*>> names, bool wanted) {
  std::string text;
  for (const auto& [present, name] : names)
    if (present == wanted) text += (text.empty() ? "" : ",") + std::string(name);
  return text;
}

std::string lacking(std::initializer_list<std::pair<bool, const char*>> names) {
  const std::string missing = join(names, false);
  return missing.empty() ? "" : "this CPU or its operating system lacks " + missing;
}

// Why the tiles cannot be used, the reasons against AVX-512 first; asks the system for them, then tries them.
std::string amx_refusal(const std::string& without_tiles) {
  if (!without_tiles.empty()) return without_tiles;
  const std::string missing = lacking({{features().amx_tile, "amx_tile"}, {features().amx_int8, "amx_int8"}});
  if (!missing.empty()) return missing;
  if (*tiles_refused()) return tiles_refused();
#if defined(LLMRUN_HAVE_X86)
  if (!amx::tiles_work()) return "a trial product on tile registers came out wrong";
#endif
  return "";
}

}  // namespace

const char* cpu_features() {
  const Features& f = features();
  static const std::string text =
      join({{f.avx2, "avx2"}, {f.fma, "fma"}, {f.f16c, "f16c"}, {f.avx_vnni, "avx_vnni"}, {f.avx512f, "avx512f"},
            {f.avx512bw, "avx512bw"}, {f.avx512dq, "avx512dq"}, {f.avx512vl, "avx512vl"},
            {f.avx512_vnni, "avx512_vnni"}, {f.avx512_bf16, "avx512_bf16"}, {f.amx_tile, "amx_tile"},
            {f.amx_int8, "amx_int8"}, {f.amx_bf16, "amx_bf16"}, {f.neon, "neon"}, {f.dotprod, "dotprod"},
            {f.i8mm, "i8mm"}},
           true);
  return text.c_str();
}

const KernelTable* const* builds(int* count) {
  static const KernelTable* const all[] = {
#if defined(LLMRUN_HAVE_EMULATED)
      &avxvnni_emulated_table, &avx512_emulated_table, &amx_emulated_table,  // first: never chosen by themselves
#endif
      &generic_table,
#if defined(LLMRUN_HAVE_X86)
      &avx2_table, &avxvnni_table, &avx512_table, &amx_table,
#endif
#if defined(LLMRUN_HAVE_NEON)
      &neon_table,
#endif
  };
  *count = static_cast<int>(sizeof all / sizeof all[0]);
  return all;
}

const char* build_refused(const char* name) {
  const Features& f = features();
  static const std::string avx2 = lacking({{f.avx2, "avx2"}, {f.fma, "fma"}, {f.f16c, "f16c"}});
  static const std::string avx512 =
      lacking({{f.avx2, "avx2"}, {f.fma, "fma"}, {f.f16c, "f16c"}, {f.avx512f, "avx512f"}, {f.avx512bw, "avx512bw"},
               {f.avx512dq, "avx512dq"}, {f.avx512vl, "avx512vl"}, {f.avx512_vnni, "avx512_vnni"}});
  static const std::string avxvnni =
      lacking({{f.avx2, "avx2"}, {f.fma, "fma"}, {f.f16c, "f16c"}, {f.avx_vnni, "avx_vnni"}});
  static const std::string amx = amx_refusal(avx512);
  static const std::string neon = lacking({{f.neon, "neon"}, {f.dotprod, "dotprod"}});
  int count = 0;
  const KernelTable* const* all = builds(&count);
  for (int i = 0; i < count; ++i) {
    if (strcmp(all[i]->name, name)) continue;
    if (!strcmp(name, "avx2")) return avx2.c_str();
    if (!strcmp(name, "avxvnni")) return avxvnni.c_str();
    if (!strcmp(name, "avx512")) return avx512.c_str();
    if (!strcmp(name, "amx")) return amx.c_str();
    if (strstr(name, "_emulated")) return avx2.c_str();
    if (!strcmp(name, "neon")) return neon.c_str();
    return "";
  }
  return nullptr;
}

const KernelTable* choose_build(const char* name) {
  int count = 0;
  const KernelTable* const* all = builds(&count);
  for (int i = count - 1; i >= 0; --i) {
    if (name && strcmp(all[i]->name, name)) continue;
    if (!*build_refused(all[i]->name)) return all[i];
  }
  return nullptr;
}

}  // namespace llmrun
