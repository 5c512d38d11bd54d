// Hashed n-gram rows and tables in pieces; kernels that need no special instructions.
#pragma once
#include <stdint.h>

namespace llmrun {

struct Job;

// A block of tokens and how well it fits a query.
struct Scored {
  float score;
  int32_t block;
};

// The `k` best of scored[count], k < count: their blocks in ascending order. The lowest block first among equals.
void choose_blocks(Scored* scored, int64_t count, int64_t k, int32_t* out);

void ngram_rows(const Job& job);      // one unit: rows of a sequence follow each other
void announce_rows(const Job& job);   // one unit: tells the system which pages of a mapped table come next
void shard_rows(const Job& job);

}  // namespace llmrun
