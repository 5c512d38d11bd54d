// Tile registers (AMX int8) behind four functions, with an emulation of the same meaning for tests.
//
// Eight registers (configured before use): 0-3 take sums i32 [rows][16], 4-5 activations i8 [rows][depth], 6-7 weights u8 [depth / 4][16][4].
// The assembly says which memory it reads and writes; compilers' own intrinsics do not (GCC 12's tile_loadconfig names 8
// of its 64 bytes, its tile loads none), and stores before them may be lost.
#pragma once
#include <stdint.h>
#include <string.h>

namespace llmrun::LLMRUN_BUILD {

constexpr int TILE_ROWS = 16;

// The memory layout of tile palette 1.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {0};
  uint16_t row_bytes[16] = {0};
  uint8_t rows[16] = {0};
};
static_assert(sizeof(TileConfig) == 64, "ldtilecfg reads 64 bytes");

// `rows` of sums and activations, `depth` bytes of each activation row.
static inline TileConfig tile_config(int rows, int depth) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    const bool weights = i >= 6;
    config.rows[i] = static_cast<uint8_t>(weights ? depth / 4 : rows);
    config.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? depth : 64);
  }
  return config;
}

#if defined(LLMRUN_EMULATED)

class Tiles {
 public:
  void configure(int rows, int depth) { config_ = tile_config(rows, depth); }
  template <int N>
  void clear() {
    memset(data_[N], 0, sizeof data_[N]);
  }
  template <int N>
  void load(const void* from, int64_t stride) {
    for (int r = 0; r < config_.rows[N]; ++r)
      memcpy(data_[N] + 64 * r, static_cast<const uint8_t*>(from) + r * stride, config_.row_bytes[N]);
  }
  template <int N>
  void store(int32_t* to) const {
    for (int r = 0; r < config_.rows[N]; ++r) memcpy(to + 16 * r, data_[N] + 64 * r, config_.row_bytes[N]);
  }
  template <int SUM, int X, int W>
  void multiply() {
    for (int m = 0; m < config_.rows[X]; ++m)
      for (int n = 0; n < 16; ++n) {
        uint32_t sum;
        memcpy(&sum, data_[SUM] + 64 * m + 4 * n, 4);
        for (int k = 0; k < config_.row_bytes[X]; ++k)
          sum += static_cast<uint32_t>(static_cast<int8_t>(data_[X][64 * m + k]) * data_[W][64 * (k / 4) + 4 * n + k % 4]);
        memcpy(data_[SUM] + 64 * m + 4 * n, &sum, 4);
      }
  }

 private:
  TileConfig config_;
  alignas(64) uint8_t data_[8][1024] = {};
};

#else

class Tiles {
 public:
  Tiles() = default;
  ~Tiles() { __asm__ volatile("tilerelease" ::: "memory"); }  // the system then has no tiles to save
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  void configure(int rows, int depth) {
    const TileConfig config = tile_config(rows, depth);
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  template <int N>
  inline __attribute__((always_inline)) void clear() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(N));
  }
  template <int N>
  inline __attribute__((always_inline)) void load(const void* from, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(N) : "memory");
  }
  template <int N>
  inline __attribute__((always_inline)) void store(int32_t* to) const {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(static_cast<int64_t>(64)), "i"(N) : "memory");
  }
  // Sums += signed activations x unsigned weights.
  template <int SUM, int X, int W>
  inline __attribute__((always_inline)) void multiply() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(X), "i"(W));
  }
};

#endif

}  // namespace llmrun::LLMRUN_BUILD
