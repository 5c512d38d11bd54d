// The phases of recurrent ops: which rows belong to which sequence, and where its state lies, is read at run time.
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
  return (2 * padded + 16) * DELTA_ROWS * static_cast<int64_t>(sizeof(float));
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
    runs_.push_back({static_cast<int32_t>(r), 1, positions[r], slot});
  }
  return true;
}

void Program::prepare_recurrent(Phase* phase) {
  const LlmrunOp& op = *phase->op;
  phase->units = 0;
  if (!find_runs(op)) {
    status = LLMRUN_BAD_STATE;
    return;
  }
  const int64_t runs = static_cast<int64_t>(runs_.size());
  phase->units = runs * (op.code == LLMRUN_SHORT_CONV ? (op.n[3] + CONV_CHANNELS - 1) / CONV_CHANNELS : op.n[4] * op.n[7]);
  phase->serial = threads_ == 1 || static_cast<double>(op.n[0]) * row_ns(op) < SERIAL_NS;
  phase->chunk = std::max<int64_t>(1, phase->units / (threads_ * PIECES));
}

}  // namespace llmrun
