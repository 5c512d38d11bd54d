// Blocks whose codes are numbers of codebook points (IQ1, IQ2, IQ3). A point's values become one code each: the size's
// place in its ascending list, with the sign above it (IQ1: -1 0 1, and above them whether the group is moved down).
#include "blocks.h"

namespace llmrun {
namespace {

// The eighth of these sign bits makes the number of minus signs even.
uint8_t even_signs(uint32_t seven) {
  const uint32_t bits = seven & 127;
  return static_cast<uint8_t>(bits | (static_cast<uint32_t>(__builtin_popcount(bits)) & 1u) << 7);
}

// `count` sizes of a point: `drop` low bits tell nothing, bit i of `signs` goes to bit `width` of code i.
void put_point(const int8_t* point, int count, int drop, int width, uint32_t signs, uint8_t* q) {
  const uint32_t mask = (1u << width) - 1u;
  for (int i = 0; i < count; ++i)
    q[i] = static_cast<uint8_t>(((static_cast<uint32_t>(point[i]) >> drop) & mask) | ((signs >> i) & 1u) << width);
}

void put_iq2(const int8_t* grid, uint32_t index, uint8_t signs, uint8_t* q) { put_point(grid + 8 * index, 8, 4, 2, signs, q); }

void put_iq1(const int8_t* grid, uint32_t index, bool down, uint8_t* q) {
  for (int i = 0; i < 8; ++i) q[i] = static_cast<uint8_t>(((grid[8 * index + static_cast<uint32_t>(i)] + 1) & 3) | (down ? 4 : 0));
}

uint8_t odd(uint32_t scale) { return static_cast<uint8_t>(2 * scale + 1); }

void read_iq2_xxs(const int8_t* grid, const uint8_t* p, int j, Block* out) {
  const uint8_t* group = p + 2 + 8 * j;
  const uint32_t word = read32(group + 4);
  for (int g = 0; g < 4; ++g) put_iq2(grid, group[g], even_signs(word >> (7 * g)), out->q + 8 * g);
  out->s[0] = odd(word >> 28);
}

void read_iq2_xs(const int8_t* grid, const uint8_t* p, int j, Block* out) {
  for (int g = 0; g < 4; ++g) {
    const uint32_t word = read16(p + 2 + 2 * (4 * j + g));
    put_iq2(grid, word & 511, even_signs(word >> 9), out->q + 8 * g);
  }
  out->s[0] = p[66 + j];
}

void read_iq2_s(const int8_t* grid, const uint8_t* p, int j, Block* out) {
  for (int g = 0; g < 4; ++g) {
    const uint32_t high = (static_cast<uint32_t>(p[66 + j]) >> (2 * g)) & 3u;
    put_iq2(grid, p[2 + 4 * j + g] | high << 8, p[34 + 4 * j + g], out->q + 8 * g);
  }
  out->s[0] = p[74 + j];
}

void read_iq3_xxs(const int8_t* grid, const uint8_t* p, int j, Block* out) {
  const uint32_t word = read32(p + 66 + 4 * j);
  for (int g = 0; g < 8; ++g) {
    const uint32_t signs = even_signs(word >> (7 * (g / 2))) >> (4 * (g % 2));
    put_point(grid + 4 * p[2 + 8 * j + g], 4, 3, 3, signs, out->q + 4 * g);
  }
  out->s[0] = odd(word >> 28);
}

void read_iq3_s(const int8_t* grid, const uint8_t* p, int j, Block* out) {
  for (int g = 0; g < 8; ++g) {
    const uint32_t index = p[2 + 8 * j + g] | ((static_cast<uint32_t>(p[66 + j]) >> g) & 1u) << 8;
    const uint32_t signs = static_cast<uint32_t>(p[74 + 4 * j + g / 2]) >> (4 * (g % 2));
    put_point(grid + 4 * index, 4, 1, 3, signs, out->q + 4 * g);
  }
  out->s[0] = odd((static_cast<uint32_t>(p[106 + j / 2]) >> (4 * (j % 2))) & 15u);
}

void read_iq1_s(const int8_t* grid, const uint8_t* p, int j, Block* out) {
  const uint32_t word = read16(p + 34 + 2 * j);
  for (int g = 0; g < 4; ++g) put_iq1(grid, p[2 + 4 * j + g] | ((word >> (3 * g)) & 7u) << 8, word >> 15, out->q + 8 * g);
  out->s[0] = odd((word >> 12) & 7u);
}

void read_iq1_m(const int8_t* grid, const uint8_t* p, int j, Block* out) {
  for (int g = 0; g < 4; ++g) {
    const uint32_t high = (static_cast<uint32_t>(p[32 + 2 * j + g / 2]) >> (4 * (g % 2))) & 15u;
    put_iq1(grid, p[4 * j + g] | (high & 7u) << 8, high & 8u, out->q + 8 * g);
  }
  const uint32_t scales = static_cast<uint32_t>(read16(p + 48 + 2 * (j / 2))) >> (6 * (j % 2));
  out->s[0] = static_cast<uint8_t>((scales & 7u) | ((scales >> 3) & 7u) << 4);
  uint32_t d = 0;
  for (int i = 0; i < 4; ++i) d |= static_cast<uint32_t>(read16(p + 48 + 2 * i) >> 12) << (4 * i);
  out->d = static_cast<uint16_t>(d);
}

}  // namespace

void read_codebook_block(int32_t type, const int8_t* grid, const uint8_t* p, int j, Block* out) {
  out->d = read16(p);
  switch (type) {
    case LLMRUN_IQ2_XXS: return read_iq2_xxs(grid, p, j, out);
    case LLMRUN_IQ2_XS: return read_iq2_xs(grid, p, j, out);
    case LLMRUN_IQ2_S: return read_iq2_s(grid, p, j, out);
    case LLMRUN_IQ3_XXS: return read_iq3_xxs(grid, p, j, out);
    case LLMRUN_IQ3_S: return read_iq3_s(grid, p, j, out);
    case LLMRUN_IQ1_S: return read_iq1_s(grid, p, j, out);
    default: return read_iq1_m(grid, p, j, out);
  }
}

}  // namespace llmrun
