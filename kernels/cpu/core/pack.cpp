// File layout -> packed layout (types.h), and rows of file layout -> f32. Compiled once, without special instructions.
#include <math.h>

#include "half.h"
#include "kernels.h"

namespace llmrun {
namespace {

uint16_t read16(const uint8_t* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}

float read_half(const uint8_t* p) { return half_to_float(read16(p)); }

// 32 quants of block b of a row, unsigned, with the scales as stored.
struct Block {
  uint8_t q[BLOCK];
  uint16_t d, m;      // f16: per block, or of the super block for K types
  uint8_t s[2];       // K types: scale and minimum, or the two scales of Q6_K
};

void nibbles(const uint8_t* qs, uint8_t* q) {  // 16 bytes: low nibbles are 0..15, high ones 16..31
  for (int i = 0; i < 16; ++i) {
    q[i] = qs[i] & 15;
    q[i + 16] = qs[i] >> 4;
  }
}

void fifth_bits(const uint8_t* qh, uint8_t* q) {
  uint32_t bits;
  memcpy(&bits, qh, 4);
  for (int i = 0; i < BLOCK; ++i) q[i] = static_cast<uint8_t>(q[i] | (((bits >> i) & 1u) << 4));
}

void six_bit_scales(const uint8_t* s, int j, uint8_t* out) {  // Q4_K, Q5_K: scale and minimum of block j
  if (j < 4) {
    out[0] = s[j] & 63;
    out[1] = s[j + 4] & 63;
  } else {
    out[0] = static_cast<uint8_t>((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
    out[1] = static_cast<uint8_t>((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
  }
}

void k_nibbles(const uint8_t* qs, int j, uint8_t* q) {
  const uint8_t* from = qs + 32 * (j / 2);
  for (int i = 0; i < BLOCK; ++i) q[i] = (from[i] >> (4 * (j % 2))) & 15;
}

void read_q6(const uint8_t* p, int j, Block* out) {
  const int half = j / 4, quarter = j % 4;
  const uint8_t *low = p + 64 * half + 32 * (quarter % 2), *high = p + 128 + 32 * half;
  for (int i = 0; i < BLOCK; ++i)
    out->q[i] = static_cast<uint8_t>(((low[i] >> (4 * (quarter / 2))) & 15) | (((high[i] >> (2 * quarter)) & 3) << 4));
  out->s[0] = p[192 + 2 * j];
  out->s[1] = p[192 + 2 * j + 1];
  out->d = read16(p + 208);
}

void read_k(int32_t type, const uint8_t* p, int j, Block* out) {
  if (type == LLMRUN_Q6_K) return read_q6(p, j, out);
  out->d = read16(p);
  out->m = read16(p + 2);
  six_bit_scales(p + 4, j, out->s);
  k_nibbles(p + (type == LLMRUN_Q4_K ? 16 : 48), j, out->q);
  if (type == LLMRUN_Q5_K)
    for (int i = 0; i < BLOCK; ++i) out->q[i] = static_cast<uint8_t>(out->q[i] | (((p[16 + i] >> j) & 1) << 4));
}

// Block b of a row in file layout. Q8_0 quants come out as q+128.
void read_block(const TypeInfo& info, const uint8_t* row, int64_t b, Block* out) {
  if (info.block == SUPER) return read_k(info.type, row + b / 8 * info.block_bytes, static_cast<int>(b % 8), out);
  const uint8_t* p = row + b * info.block_bytes;
  out->d = read16(p);
  switch (info.type) {
    case LLMRUN_Q4_0: return nibbles(p + 2, out->q);
    case LLMRUN_Q4_1: out->m = read16(p + 2); return nibbles(p + 4, out->q);
    case LLMRUN_Q5_0: nibbles(p + 6, out->q); return fifth_bits(p + 2, out->q);
    case LLMRUN_Q5_1:
      out->m = read16(p + 2);
      nibbles(p + 8, out->q);
      return fifth_bits(p + 4, out->q);
    default:
      for (int i = 0; i < BLOCK; ++i) out->q[i] = static_cast<uint8_t>(p[2 + i] ^ 128);
  }
}

// Unsigned quants that stand for the value 0 with a zero scale; any would do.
void empty_block(Block* out) { memset(out, 0, sizeof *out); }

void put16(uint8_t* p, int row, uint16_t value) { memcpy(p + 2 * row, &value, 2); }

uint32_t four(const uint8_t* q) {
  uint32_t word;
  memcpy(&word, q, 4);
  return word;
}

void put_four(uint8_t* line, int row, uint32_t word) { memcpy(line + 4 * row, &word, 4); }

// Quants of `row` into the interleaved lines at `lines`, four bytes at a time.
void put_quants(int bits, int row, const uint8_t* q, uint8_t* lines) {
  if (bits == 8) {
    for (int quad = 0; quad < 8; ++quad) put_four(lines + 64 * quad, row, four(q + 4 * quad));
    return;
  }
  uint32_t fifth = 0, upper[2] = {0, 0};
  for (int j = 0; j < 4; ++j) {
    const uint32_t even = four(q + 8 * j), odd = four(q + 8 * j + 4);
    put_four(lines + 64 * j, row, (even & 0x0f0f0f0fu) | ((odd & 0x0f0f0f0fu) << 4));
    fifth |= (((even >> 4) & 0x01010101u) << (2 * j)) | (((odd >> 4) & 0x01010101u) << (2 * j + 1));
    upper[j / 2] |= (((even >> 4) & 0x03030303u) << (4 * (j % 2))) | (((odd >> 4) & 0x03030303u) << (4 * (j % 2) + 2));
  }
  if (bits == 5) put_four(lines + 256, row, fifth);
  if (bits == 6) {
    put_four(lines + 256, row, upper[0]);
    put_four(lines + 320, row, upper[1]);
  }
}

int bits_of(int32_t type) {
  switch (type) {
    case LLMRUN_Q5_0: case LLMRUN_Q5_1: case LLMRUN_Q5_K: return 5;
    case LLMRUN_Q6_K: return 6;
    case LLMRUN_Q8_0: return 8;
    default: return 4;
  }
}

bool has_minimum(int32_t type) { return type == LLMRUN_Q4_1 || type == LLMRUN_Q5_1; }

// Block b of 16 rows (file layout, `count` of them exist) to `out`; returns the end.
uint8_t* pack_block(const TypeInfo& info, const uint8_t* rows, int64_t stride, int count, int64_t b, uint8_t* out) {
  const bool super = info.block == SUPER;
  uint8_t* head = out;
  if (super && b % 8 == 0) out += info.head_bytes;
  const int scales = has_minimum(info.type) ? 64 : 32;
  for (int r = 0; r < GROUP; ++r) {
    Block block;
    if (r < count)
      read_block(info, rows + r * stride, b, &block);
    else
      empty_block(&block);
    if (!super || b % 8 == 0) {
      put16(super ? head : out, r, block.d);
      if (has_minimum(info.type) || info.head_bytes == 64) put16((super ? head : out) + 32, r, block.m);
    }
    if (super) {
      out[r] = block.s[0];
      out[GROUP + r] = block.s[1];
    }
    put_quants(bits_of(info.type), r, block.q, out + scales);
  }
  return out + info.packed_bytes;
}

template <class Element>
void pack_floats(const uint8_t* rows, int64_t cols, int count, uint8_t* out) {
  Element* to = reinterpret_cast<Element*>(out);
  memset(out, 0, static_cast<size_t>(cols) * GROUP * sizeof(Element));
  for (int r = 0; r < count; ++r)
    for (int64_t k = 0; k < cols; ++k) memcpy(to + k * GROUP + r, rows + (r * cols + k) * sizeof(Element), sizeof(Element));
}

void block_values(const TypeInfo& info, const Block& block, float* out) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (int i = 0; i < BLOCK; ++i) {
    const float q = block.q[i];
    switch (info.type) {
      case LLMRUN_Q4_0: out[i] = d * (q - 8.0f); break;
      case LLMRUN_Q5_0: out[i] = d * (q - 16.0f); break;
      case LLMRUN_Q8_0: out[i] = d * (q - 128.0f); break;
      case LLMRUN_Q4_1: case LLMRUN_Q5_1: out[i] = d * q + m; break;
      case LLMRUN_Q6_K: out[i] = d * static_cast<float>(static_cast<int8_t>(block.s[i / 16])) * (q - 32.0f); break;
      default: out[i] = d * static_cast<float>(block.s[0]) * q - m * static_cast<float>(block.s[1]);
    }
  }
}

void row_values(const TypeInfo& info, const uint8_t* row, int64_t cols, float* out) {
  switch (info.type) {
    case LLMRUN_F32: memcpy(out, row, static_cast<size_t>(cols) * 4); return;
    case LLMRUN_F16: for (int64_t k = 0; k < cols; ++k) out[k] = read_half(row + 2 * k); return;
    case LLMRUN_BF16: for (int64_t k = 0; k < cols; ++k) out[k] = bfloat_to_float(read16(row + 2 * k)); return;
    default: break;
  }
  for (int64_t b = 0; b < cols / BLOCK; ++b) {
    Block block;
    read_block(info, row, b, &block);
    block_values(info, block, out + b * BLOCK);
  }
}

}  // namespace

void pack(const Job& job) {
  const int64_t rows = job.op->n[0], cols = job.op->n[1];
  const TypeInfo& info = *type_info(job.op->n[2]);
  const int64_t stride = row_bytes(info, cols), bytes = group_bytes(info, cols);
  for (int64_t g = job.begin; g < job.end; ++g) {
    const uint8_t* from = static_cast<const uint8_t*>(job.op->p[0]) + g * GROUP * stride;
    uint8_t* out = static_cast<uint8_t*>(job.op->p[1]) + g * bytes;
    const int count = static_cast<int>(rows - g * GROUP < GROUP ? rows - g * GROUP : GROUP);
    if (info.type == LLMRUN_F32)
      pack_floats<uint32_t>(from, cols, count, out);
    else if (is_float(info.type))
      pack_floats<uint16_t>(from, cols, count, out);
    else
      for (int64_t b = 0; b < cols / BLOCK; ++b) out = pack_block(info, from, stride, count, b, out);
  }
}

void embed(const Job& job) {
  const int64_t width = job.op->n[1], entries = job.op->n[3];
  const TypeInfo& info = *type_info(job.op->n[2]);
  const int32_t* ids = static_cast<const int32_t*>(job.op->p[0]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    if (ids[r] < 0 || ids[r] >= entries) {
      report(job, LLMRUN_BAD_ID);
      continue;
    }
    row_values(info, static_cast<const uint8_t*>(job.op->p[1]) + ids[r] * row_bytes(info, width), width,
               static_cast<float*>(job.op->p[2]) + r * width);
  }
}

void gather(const Job& job) {
  const int64_t width = job.op->n[1], rows = job.op->n[2];
  const int32_t* index = static_cast<const int32_t*>(job.op->p[1]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    if (index[r] < 0 || index[r] >= rows) {
      report(job, LLMRUN_BAD_INDEX);
      continue;
    }
    memcpy(static_cast<float*>(job.op->p[2]) + r * width, static_cast<const float*>(job.op->p[0]) + index[r] * width,
           static_cast<size_t>(width) * 4);
  }
}

void rope_table(const Job& job) {
  const int64_t pairs = job.op->n[1];
  const int32_t* positions = static_cast<const int32_t*>(job.op->p[0]);
  const float* frequencies = static_cast<const float*>(job.op->p[1]);
  for (int64_t r = job.begin; r < job.end; ++r)
    for (int64_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(positions[r]) * frequencies[i];
      static_cast<float*>(job.op->p[2])[r * pairs + i] = cosf(angle) * job.op->f[0];
      static_cast<float*>(job.op->p[3])[r * pairs + i] = sinf(angle) * job.op->f[0];
    }
}

}  // namespace llmrun
