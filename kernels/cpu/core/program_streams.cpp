// The ops of residual streams, hashed n-grams and block-sparse attention: what cannot be right, and how work is cut.
#include <algorithm>

#include "ngrams.h"
#include "program.h"

namespace llmrun {
namespace {

constexpr double SERIAL_NS = 1500;  // as in program.cpp
constexpr int64_t PIECES = 4;
constexpr int64_t MOST = int64_t(1) << 40;

// The first `numbers` are positive and sane, the first `pointers` are there.
bool sane(const LlmrunOp& op, int numbers, int pointers) {
  bool good = true;
  for (int i = 0; i < numbers; ++i) good = good && op.n[i] > 0 && op.n[i] <= MOST;
  for (int i = 0; i < pointers; ++i) good = good && op.p[i];
  return good;
}

const char* fault_of_ngrams(const LlmrunOp& op) {
  if (!sane(op, 5, 9) || op.n[1] > 7 || op.n[2] % op.n[1]) return "n-grams of impossible numbers";
  if (op.n[6] < op.n[1] || op.n[6] > MOST) return "the ring of past ids is too short";
  for (int64_t j = 0; j < op.n[2]; ++j)
    if (static_cast<const int64_t*>(op.p[6])[j] <= 0) return "a table size is not positive";
  return nullptr;
}

const char* fault_of_shards(const LlmrunOp& op) {
  if (!sane(op, 2, 3) || op.n[3] <= 0 || op.n[4] <= 0 || op.n[3] > MOST / op.n[4]) return "a table of impossible numbers";
  const TypeInfo* info = type_info(op.n[2]);
  if (!info || op.n[1] % info->block) return "an unknown type, or columns that are no multiple of its block";
  if (needs_grid(op.n[2]) && !op.p[3]) return "the codebook is missing";
  for (int64_t i = 0; i < op.n[4]; ++i)
    if (!static_cast<void**>(op.p[1])[i]) return "a part of the table is null";
  return nullptr;
}

const char* fault_of_sparse(const LlmrunOp& op) {
  if (!sane(op, 8, 8) || op.n[9] <= 0 || op.n[10] <= 0 || op.n[11] <= 0) return "impossible numbers or a null array";
  if (!is_float(op.n[8])) return "the cache type is not f32, f16 or bf16";
  if (op.n[1] % op.n[2] || op.n[1] / op.n[2] % op.n[11]) return "heads are no multiple of kv heads or of a unit's heads";
  if (op.n[1] > 4096 || op.n[3] > 4096) return "more than 4096 heads or head elements";
  return op.n[4] % op.n[9] ? "a page is not whole blocks" : nullptr;
}

int64_t sparse_scratch_bytes(const LlmrunOp& op) {
  const int64_t padded = (op.n[3] + 15) / 16 * 16, heads = op.n[11];
  return 4 * (heads * padded + 2 * SPARSE_TOKENS * padded + heads * (padded + 16 + SPARSE_TOKENS)) + 2 * padded + 64;
}

int64_t choice_scratch_bytes(const LlmrunOp& op) {
  return op.n[8] * (op.n[3] / op.n[5]) * static_cast<int64_t>(sizeof(Scored)) + 64;
}

struct Work {
  Kernel run;
  int64_t units;
  double unit_ns;
};

// Rough costs of one thread. What selection and sparse attention cost is known only from the positions of a run: taken
// as a row of some thousand tokens.
Work work_of(const KernelTable& table, const LlmrunOp& op) {
  const int64_t* n = op.n;
  const double row = static_cast<double>(n[1] * n[2]);
  switch (op.code) {
    case LLMRUN_STREAM_NORM: return {table.stream_norm, n[0], 0.2 * row};
    case LLMRUN_SILU_SCALED: return {table.silu_scaled, (n[0] + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS, 500};
    case LLMRUN_STREAM_MIX: return {table.stream_mix, n[0], 0.5 * row};
    case LLMRUN_STREAM_ADD: return {table.stream_add, n[0], 0.1 * row};
    case LLMRUN_STREAM_GATE: return {table.stream_gate, n[0], 0.2 * row};
    case LLMRUN_NGRAM_ROWS: return {ngram_rows, 1, 0};
    case LLMRUN_SHARD_ROWS: return {shard_rows, n[0], static_cast<double>(n[1])};
    case LLMRUN_INDEX_STORE: return {table.index_store, n[0], 1 + 4 * static_cast<double>(n[1])};
    case LLMRUN_INDEX_SELECT: return {table.index_select, n[0], 20000};
    default: return {table.sparse_attention, n[0] * n[1] / n[11], 50000};
  }
}

}  // namespace

const char* fault_of_streams(const LlmrunOp& op) {
  switch (op.code) {
    case LLMRUN_STREAM_NORM: case LLMRUN_STREAM_MIX: case LLMRUN_STREAM_ADD: case LLMRUN_STREAM_GATE:
      return sane(op, 3, op.code == LLMRUN_STREAM_GATE ? 4 : 3) ? nullptr : "impossible numbers or a null array";
    case LLMRUN_SILU_SCALED: return sane(op, 1, 2) ? nullptr : "impossible numbers or a null array";
    case LLMRUN_NGRAM_ROWS: return fault_of_ngrams(op);
    case LLMRUN_SHARD_ROWS: return fault_of_shards(op);
    case LLMRUN_INDEX_STORE:
      if (!sane(op, 8, 9) || op.n[2] % op.n[4] || 2 * op.n[5] > op.n[1]) return "index keys of impossible numbers";
      return nullptr;
    case LLMRUN_INDEX_SELECT:
      return sane(op, 9, 7) && op.n[3] % op.n[5] == 0 ? nullptr : "index queries of impossible numbers";
    case LLMRUN_SPARSE_ATTENTION: return fault_of_sparse(op);
    default: return "no such op";
  }
}

void Program::add_streams(const KernelTable& table, const LlmrunOp& op) {
  if (op.code == LLMRUN_SHARD_ROWS) phases_.push_back({&op, announce_rows, 1, 1, true, false, false});
  if (op.code == LLMRUN_INDEX_SELECT)
    scratch_bytes_ = std::max(scratch_bytes_, static_cast<size_t>(choice_scratch_bytes(op)));
  if (op.code == LLMRUN_SPARSE_ATTENTION)
    scratch_bytes_ = std::max(scratch_bytes_, static_cast<size_t>(sparse_scratch_bytes(op)));
  const Work work = work_of(table, op);
  Phase phase = {&op, work.run, work.units, 1, false, false, false};
  phase.serial = threads_ == 1 || work.units == 1 || static_cast<double>(work.units) * work.unit_ns < SERIAL_NS;
  phase.chunk = std::max<int64_t>(1, work.units / (threads_ * PIECES));
  phases_.push_back(phase);
}

}  // namespace llmrun
