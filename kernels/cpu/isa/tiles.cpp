// A first product on tile registers, compared with plain arithmetic before the build is offered.
#include "tiles.h"

namespace llmrun::LLMRUN_BUILD {

bool tiles_work() {
  constexpr int rows = 11, depth = 32;
  int8_t x[rows * depth];
  uint8_t weights[depth * 16];
  alignas(64) int32_t got[rows * 16];
  for (int i = 0; i < rows * depth; ++i) x[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  for (int i = 0; i < depth * 16; ++i) weights[i] = static_cast<uint8_t>(i * 91 + i / 7);
  {
    Tiles tiles;
    tiles.configure(rows, depth);
    tiles.clear<0>();
    tiles.load<4>(x, depth);
    tiles.load<6>(weights, 64);
    tiles.multiply<0, 4, 6>();
    tiles.multiply<0, 4, 6>();
    tiles.store<0>(got);
  }
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < 16; ++n) {
      int32_t sum = 0;
      for (int k = 0; k < depth; ++k) sum += 2 * x[m * depth + k] * weights[64 * (k / 4) + 4 * n + k % 4];
      if (sum != got[m * 16 + n]) return false;
    }
  return true;
}

}  // namespace llmrun::LLMRUN_BUILD
