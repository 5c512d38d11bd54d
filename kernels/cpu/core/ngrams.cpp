#include "ngrams.h"

#include <algorithm>

#include "blocks.h"
#include "kernels.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace llmrun {
namespace {

template <class T>
const T* pointer(const Job& job, int i) {
  return static_cast<const T*>(job.op->p[i]);
}

constexpr int MOST_HISTORY = 7;

// tokens: the current one, then its predecessors, the latest first.
void hash_token(const Job& job, const int32_t* tokens, int32_t* out) {
  const int64_t history = job.op->n[1], each = job.op->n[2] / history;
  const int64_t eos = job.op->n[5];
  const uint64_t* multipliers = pointer<uint64_t>(job, 5);
  const int64_t *sizes = pointer<int64_t>(job, 6), *offsets = pointer<int64_t>(job, 7);
  const auto product = [&](int64_t token, int64_t i) { return static_cast<uint64_t>(token) * multipliers[i]; };
  uint64_t key = product(tokens[0], 0);
  bool cut = false;
  for (int64_t order = 1; order <= history; ++order) {
    cut = cut || tokens[order] == eos;
    key ^= product(cut ? eos : tokens[order], order);
    for (int64_t j = (order - 1) * each; j < order * each; ++j)
      out[j] = static_cast<int32_t>(static_cast<int64_t>(key) % sizes[j] + offsets[j]);
  }
}

// Where a row of the table lies; null outside of it.
const uint8_t* shard_row(const Job& job, int64_t row, int64_t bytes) {
  const int64_t each = job.op->n[3], shards = job.op->n[4];
  if (row < 0 || row >= each * shards) return nullptr;
  return static_cast<const uint8_t* const*>(job.op->p[1])[row / each] + row % each * bytes;
}

}  // namespace

void choose_blocks(Scored* scored, int64_t count, int64_t k, int32_t* out) {
  const auto better = [](const Scored& a, const Scored& b) {
    return a.score > b.score || (a.score == b.score && a.block < b.block);
  };
  std::nth_element(scored, scored + k - 1, scored + count, better);
  for (int64_t i = 0; i < k; ++i) out[i] = scored[i].block;
  std::sort(out, out + k);
}

void ngram_rows(const Job& job) {
  const int64_t rows = job.op->n[0], history = job.op->n[1], heads = job.op->n[2];
  const int64_t sequences = job.op->n[3], slots = job.op->n[4], ring = job.op->n[6];
  const int32_t *ids = pointer<int32_t>(job, 0), *positions = pointer<int32_t>(job, 1);
  const int32_t *sequence = pointer<int32_t>(job, 2), *states = pointer<int32_t>(job, 3);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t slot = sequence[r] >= 0 && sequence[r] < sequences ? states[sequence[r]] : -1;
    if (slot < 0 || slot >= slots) {
      report(job, LLMRUN_BAD_SLOT);
      return;
    }
    if (positions[r] < 0) {
      report(job, LLMRUN_BAD_STATE);
      return;
    }
    int32_t* past = static_cast<int32_t*>(job.op->p[4]) + slot * ring;  // the id of position p at p % ring
    int32_t tokens[MOST_HISTORY + 1] = {ids[r]};
    for (int64_t back = 1; back <= history; ++back) {
      const int64_t position = positions[r] - back;
      tokens[back] = position < 0 ? static_cast<int32_t>(job.op->n[5]) : past[position % ring];
    }
    hash_token(job, tokens, static_cast<int32_t*>(job.op->p[8]) + r * heads);
    past[positions[r] % ring] = ids[r];
  }
}

void announce_rows(const Job& job) {
#if defined(__linux__) && defined(MADV_WILLNEED)
  const int64_t bytes = row_bytes(*type_info(job.op->n[2]), job.op->n[1]);
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (int64_t i = 0; i < job.op->n[0]; ++i) {
    const uint8_t* row = shard_row(job, pointer<int32_t>(job, 0)[i], bytes);
    if (!row) continue;  // reported when it is read
    const uintptr_t from = reinterpret_cast<uintptr_t>(row) / page * page;
    madvise(reinterpret_cast<void*>(from), reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(bytes) - from,
            MADV_WILLNEED);
  }
#else
  (void)job;
#endif
}

void shard_rows(const Job& job) {
  const int64_t width = job.op->n[1];
  const TypeInfo& info = *type_info(job.op->n[2]);
  const int64_t bytes = row_bytes(info, width);
  for (int64_t i = job.begin; i < job.end; ++i) {
    const uint8_t* row = shard_row(job, pointer<int32_t>(job, 0)[i], bytes);
    if (!row) {
      report(job, LLMRUN_BAD_INDEX);
      continue;
    }
    row_values({&info, pointer<int8_t>(job, 3), row}, width, static_cast<float*>(job.op->p[2]) + i * width);
  }
}

}  // namespace llmrun
