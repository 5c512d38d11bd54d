// File layout -> packed layout (types.h), and rows of file layout -> f32. Compiled once, without special instructions.
#include <math.h>

#include "blocks.h"
#include "kernels.h"

namespace llmrun {
namespace {

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
  const int above = bits >= 4 ? 4 : bits == 3 ? 2 : 0;  // bits below the high ones
  uint32_t pairs[2] = {0, 0}, upper[2] = {0, 0}, single = 0;
  for (int quad = 0; quad < 8; ++quad) {
    const uint32_t codes = four(q + 4 * quad);
    pairs[quad / 4] |= (codes & 0x03030303u) << (2 * (quad % 4));
    upper[quad / 4] |= ((codes >> 4) & 0x03030303u) << (2 * (quad % 4));
    single |= ((codes >> above) & 0x01010101u) << quad;
  }
  uint8_t* next = lines;
  const auto put = [&](uint32_t word) { put_four(next, row, word), next += 64; };
  if (bits >= 4)
    for (int j = 0; j < 4; ++j) put((four(q + 8 * j) & 0x0f0f0f0fu) | ((four(q + 8 * j + 4) & 0x0f0f0f0fu) << 4));
  if (bits == 2 || bits == 3) put(pairs[0]), put(pairs[1]);
  if (bits == 6) put(upper[0]), put(upper[1]);
  if (bits & 1) put(single);
}

// f32 d[16], i8 zero[16]; 8-bit floats have no zeros.
void put_wide_head(const TypeInfo& info, const Block& block, int row, uint8_t* out) {
  memcpy(out + 4 * row, &block.wide, 4);
  if (!is_byte_float(info.type)) out[4 * GROUP + row] = static_cast<uint8_t>(block.zero);
}

// Block b of 16 rows (file layout, `count` of them exist) to `out`; returns the end.
uint8_t* pack_block(const Source& source, int64_t stride, int count, int64_t b, uint8_t* out) {
  const TypeInfo& info = *source.info;
  const bool head = info.head_bytes && b % (info.block / BLOCK) == 0, bytes = info.head_bytes || has_byte_scales(info.type);
  uint8_t* wide = out;  // where the f16 fields go
  if (head) out += info.head_bytes;
  const bool minimum = (info.head_bytes ? info.head_bytes : info.scale_bytes) == 64;
  for (int r = 0; r < GROUP; ++r) {
    Block block = {};  // padding: quants of whatever value with a zero scale
    if (r < count) read_block({source.info, source.grid, source.row + r * stride}, b, &block);
    if (has_wide_head(info.type)) {
      if (head) put_wide_head(info, block, r, wide);
    } else if (head || !bytes) {
      put16(wide, r, block.d);
      if (minimum) put16(wide + 32, r, block.m);
    }
    if (bytes)
      for (int i = 0; i < info.scale_bytes / GROUP; ++i) out[i * GROUP + r] = block.s[i];
    if (is_byte_float(info.type))
      for (int i = 0; i < BLOCK; ++i) out[i * GROUP + r] = block.q[i];
    else
      put_quants(info.bits, r, block.q, out + info.scale_bytes);
  }
  return out + packed_block_bytes(info);
}

template <class Element>
void pack_floats(const uint8_t* rows, int64_t cols, int count, uint8_t* out) {
  Element* to = reinterpret_cast<Element*>(out);
  memset(out, 0, static_cast<size_t>(cols) * GROUP * sizeof(Element));
  for (int r = 0; r < count; ++r)
    for (int64_t k = 0; k < cols; ++k) memcpy(to + k * GROUP + r, rows + (r * cols + k) * sizeof(Element), sizeof(Element));
}

}  // namespace

void row_values(const Source& source, int64_t cols, float* out) {
  switch (source.info->type) {
    case LLMRUN_F32: memcpy(out, source.row, static_cast<size_t>(cols) * 4); return;
    case LLMRUN_F16: for (int64_t k = 0; k < cols; ++k) out[k] = half_to_float(read16(source.row + 2 * k)); return;
    case LLMRUN_BF16: for (int64_t k = 0; k < cols; ++k) out[k] = bfloat_to_float(read16(source.row + 2 * k)); return;
    default: break;
  }
  for (int64_t b = 0; b < cols / BLOCK; ++b) {
    Block block;
    read_block(source, b, &block);
    block_values(*source.info, block, out + b * BLOCK);
  }
}

void pack(const Job& job) {
  const int64_t rows = job.op->n[0], cols = job.op->n[1];
  const TypeInfo& info = *type_info(job.op->n[2]);
  const int8_t* grid = static_cast<const int8_t*>(job.op->p[2]);
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
      for (int64_t b = 0; b < cols / BLOCK; ++b) out = pack_block({&info, grid, from}, stride, count, b, out);
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
    const uint8_t* row = static_cast<const uint8_t*>(job.op->p[1]) + ids[r] * row_bytes(info, width);
    row_values({&info, static_cast<const int8_t*>(job.op->p[3]), row}, width, static_cast<float*>(job.op->p[2]) + r * width);
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

void columns(const Job& job) {
  const int64_t cols = job.op->n[1];
  const int32_t* order = static_cast<const int32_t*>(job.op->p[1]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float* x = static_cast<const float*>(job.op->p[0]) + r * cols;
    float* out = static_cast<float*>(job.op->p[2]) + r * cols;
    for (int64_t k = 0; k < cols; ++k) {
      if (order[k] < 0 || order[k] >= cols) {
        report(job, LLMRUN_BAD_COLUMN);
        return;
      }
      out[k] = x[order[k]];
    }
  }
}

void rope_table(const Job& job) {
  const int64_t pairs = job.op->n[1];
  const int32_t* positions = static_cast<const int32_t*>(job.op->p[0]);
  const float* frequencies = static_cast<const float*>(job.op->p[1]);
  const int32_t* axes = static_cast<const int32_t*>(job.op->p[4]);
  const int64_t rows = job.op->n[0];
  for (int64_t r = job.begin; r < job.end; ++r)
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t place = axes && axes[i] > 0 && axes[i] < 3 ? axes[i] * rows + r : r;
      const float angle = static_cast<float>(positions[place]) * frequencies[i];
      static_cast<float*>(job.op->p[2])[r * pairs + i] = cosf(angle) * job.op->f[0];
      static_cast<float*>(job.op->p[3])[r * pairs + i] = sinf(angle) * job.op->f[0];
    }
}

void put_rows(const Job& job) {
  const int64_t width = job.op->n[1], source_rows = job.op->n[2], source_cols = job.op->n[3], column = job.op->n[4];
  const float* x = static_cast<const float*>(job.op->p[0]);
  const int32_t* index = static_cast<const int32_t*>(job.op->p[1]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    if (index[r] < 0) continue;
    if (index[r] >= source_rows) {
      report(job, LLMRUN_BAD_INDEX);
      continue;
    }
    const float* from = x + index[r] * source_cols + column;
    float* out = static_cast<float*>(job.op->p[2]) + r * width;
    if (job.op->flags & ADD_TO_OUT)
      for (int64_t i = 0; i < width; ++i) out[i] += from[i];
    else
      memcpy(out, from, static_cast<size_t>(width) * sizeof(float));
  }
}

}  // namespace llmrun
