// One 32-block of a stored row, whatever its type: codes and scales as the packed layout keeps them, and its values.
#pragma once
#include "half.h"
#include "types.h"

namespace llmrun {

// A row in file layout. `grid`: the codebook of types that need one.
struct Source {
  const TypeInfo* info;
  const int8_t* grid;
  const uint8_t* row;
};

// 32 codes, and scales as packed: d and m are f16 (of the block, or of the file block for types with a head), s bytes;
// wide and zero are the head of our own types.
struct Block {
  uint8_t q[BLOCK];
  uint16_t d, m;
  uint8_t s[2];
  float wide;
  int8_t zero;
};

static inline uint16_t read16(const uint8_t* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}

static inline uint32_t read32(const uint8_t* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

// Types without a head whose scales are bytes all the same.
static inline bool has_byte_scales(int32_t type) { return type == LLMRUN_MXFP4 || type == LLMRUN_NVFP4; }

// 32-block b of the row; not for float types.
void read_block(const Source& source, int64_t b, Block* out);

// The values of a block that read_block read.
void block_values(const TypeInfo& info, const Block& block, float* out);

// A row of `cols` values, of any type.
void row_values(const Source& source, int64_t cols, float* out);

// read_block for types with a codebook: 32-block j of the file block at p.
void read_codebook_block(int32_t type, const int8_t* grid, const uint8_t* p, int j, Block* out);

}  // namespace llmrun
