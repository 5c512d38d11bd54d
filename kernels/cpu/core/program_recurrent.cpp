// The phases of recurrent ops: which rows belong to which sequence, where its state lies and which of them are certain is
// read at run time.
#include <string.h>

#include <algorithm>

#include "program.h"

namespace llmrun {
namespace {

constexpr int64_t PIECES = 4;      // of work a thread gets on average
constexpr double SERIAL_NS = 1500;  // less work than this is not worth a barrier

double row_ns(const LlmrunOp& op) {
  const double elements = static_cast<double>(op.code == LLMRUN_SHORT_CONV ? op.n[3] : op.n[4] * op.n[5] * op.n[6]);
  return elements * (op.code == LLMRUN_SHORT_CONV ? 0.5 : 0.1);
}

}  // namespace

int64_t delta_scratch_bytes(const LlmrunOp& op) {
  const int64_t padded = (op.n[5] + 15) / 16 * 16;
  const int64_t draft = op.n[8] ? op.n[5] * STATE_COLUMNS : 0;
  return ((2 * padded + 16) * delta_rows(op) + draft) * static_cast<int64_t>(sizeof(float));
}

// Leaves the inputs of rows that are not certain behind, for the step that will know how many of them count. A phase of its
// own: until all heads have taken up the rows that are pending now, their place is not free.
void keep_pending(const Job& job) {
  const LlmrunOp& op = *job.op;
  const int64_t most = op.n[8], keys = op.n[3] * op.n[5], heads = op.n[4], values = heads * op.n[6];
  for (int64_t unit = job.begin; unit < job.end; ++unit) {
    const Run& run = job.runs[unit / most];
    const int64_t i = unit % most, row = run.row + run.keep + i;
    if (run.keep + i >= run.rows) continue;
    float* to = static_cast<float*>(op.p[10]) + (run.slot * most + i) * pending_floats(op);
    const auto put = [&](int p, int64_t at, int64_t floats) {
      memcpy(to, static_cast<const float*>(op.p[p]) + at, static_cast<size_t>(floats) * sizeof(float));
      to += floats;
    };
    put(3, row * (2 * keys + values) + keys, keys + values);
    put(4, row * heads, heads);
    put(5, row * heads, heads);
  }
}

void Program::add_recurrent(const KernelTable& table, LlmrunOp* op) {
  runs_.reserve(std::max(runs_.capacity(), static_cast<size_t>(op->n[0])));
  slot_marks_.resize(std::max(slot_marks_.size(), static_cast<size_t>(op->n[1])));
  if (op->code == LLMRUN_SHORT_CONV) {
    phases_.push_back({op, table.short_conv, 0, 1, threads_ == 1, false, false});
    return;
  }
  scratch_bytes_ = std::max(scratch_bytes_, static_cast<size_t>(delta_scratch_bytes(*op)));
  op->n[7] = 1;  // parts a v-head's columns are cut into
  while (op->n[4] * op->n[7] < threads_ * PIECES && op->n[7] < state_blocks(op->n[6])) ++op->n[7];
  phases_.push_back({op, table.delta_rule, 0, 1, threads_ == 1, false, false});
  if (op->n[8]) phases_.push_back({op, keep_pending, 0, 1, threads_ == 1, false, true});
}

// False: rows of a sequence are not consecutive, or a sequence or a slot is out of range.
bool Program::find_runs(const LlmrunOp& op) {
  const int32_t* positions = static_cast<const int32_t*>(op.p[0]);
  const int32_t* sequences = static_cast<const int32_t*>(op.p[1]);
  const int32_t* states = static_cast<const int32_t*>(op.p[2]);
  runs_.clear();
  if (++mark_ == 0) {
    std::fill(slot_marks_.begin(), slot_marks_.end(), 0);
    mark_ = 1;
  }
  for (int64_t r = 0; r < op.n[0]; ++r) {
    if (r > 0 && sequences[r] == sequences[r - 1]) {
      if (positions[r] - positions[r - 1] != 1) return false;
      ++runs_.back().rows;
      continue;
    }
    if (positions[r] < 0 || sequences[r] < 0 || sequences[r] >= op.n[2]) return false;
    const int32_t slot = states[sequences[r]];
    if (slot < 0 || slot >= op.n[1] || slot_marks_[static_cast<size_t>(slot)] == mark_) return false;
    slot_marks_[static_cast<size_t>(slot)] = mark_;
    runs_.push_back({static_cast<int32_t>(r), 1, positions[r], slot, 0, 0});
  }
  return op.code == LLMRUN_SHORT_CONV || find_certain(op);
}

// Which rows of each run are certain, and how many pending ones come before them. False: more than there is room for.
bool Program::find_certain(const LlmrunOp& op) {
  const int32_t* sequences = static_cast<const int32_t*>(op.p[1]);
  const int32_t *keep = static_cast<const int32_t*>(op.p[11]), *fold = static_cast<const int32_t*>(op.p[12]);
  for (Run& run : runs_) {
    run.keep = run.rows;
    if (!op.n[8]) continue;
    run.keep = keep[sequences[run.row]];
    run.fold = run.position ? fold[sequences[run.row]] : 0;
    if (run.keep < 0 || run.keep > run.rows || run.rows - run.keep > op.n[8]) return false;
    if (run.fold < 0 || run.fold > op.n[8] || run.fold > run.position) return false;
  }
  return true;
}

// The second phase of the delta rule: nothing to do where all rows are certain.
void Program::prepare_pending(Phase* phase) {
  const LlmrunOp& op = *phase->op;
  int64_t rows = 0;
  for (const Run& run : runs_) rows += run.rows - run.keep;
  phase->units = rows ? static_cast<int64_t>(runs_.size()) * op.n[8] : 0;
  phase->serial = threads_ == 1 || 0.1 * static_cast<double>(rows * pending_floats(op)) < SERIAL_NS;
  phase->chunk = std::max<int64_t>(1, phase->units / (threads_ * PIECES));
}

void Program::prepare_recurrent(Phase* phase) {
  const LlmrunOp& op = *phase->op;
  if (phase->merges) return prepare_pending(phase);
  phase->units = 0;
  if (!find_runs(op)) {
    status = LLMRUN_BAD_STATE;
    runs_.clear();
    return;
  }
  const int64_t runs = static_cast<int64_t>(runs_.size());
  phase->units = runs * (op.code == LLMRUN_SHORT_CONV ? (op.n[3] + CONV_CHANNELS - 1) / CONV_CHANNELS : op.n[4] * op.n[7]);
  phase->serial = threads_ == 1 || static_cast<double>(op.n[0]) * row_ns(op) < SERIAL_NS;
  phase->chunk = std::max<int64_t>(1, phase->units / (threads_ * PIECES));
}

}  // namespace llmrun
