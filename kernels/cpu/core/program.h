// A recorded step: checked ops, cut into phases that the pool runs one after another.
#pragma once
#include <stddef.h>

#include <string>
#include <vector>

#include "kernels.h"

namespace llmrun {

// One barrier-to-barrier piece of work. `units` is cut into pieces of `chunk`; a serial phase is run by the thread that
// finished the one before it and costs no barrier.
struct Phase {
  const LlmrunOp* op;
  Kernel run;
  int64_t units;
  int64_t chunk;
  bool serial;
  bool plans;   // units are known only at run time: make the attention plan first
  bool merges;  // second phase of attention or of the delta rule
};

class Program {
 public:
  // Throws std::invalid_argument naming the op and what is wrong with it.
  Program(const KernelTable& table, int threads, const LlmrunOp* ops, int64_t count);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::vector<Phase>& phases() { return phases_; }
  size_t scratch_bytes() const { return scratch_bytes_; }

  // Fills in the units of an attention phase and the plan. Called between phases by one thread.
  void prepare(Phase* phase);
  Job job(const Phase& phase, int64_t begin, int64_t end, uint8_t* scratch);

  int32_t status;

 private:
  void add(const KernelTable& table, const LlmrunOp& op);
  void add_expert_products(const KernelTable& table, LlmrunOp* op);
  void prepare_experts(Phase* phase);
  void add_streams(const KernelTable& table, const LlmrunOp& op);
  void add_recurrent(const KernelTable& table, LlmrunOp* op);
  void prepare_recurrent(Phase* phase);
  void prepare_pending(Phase* phase);
  bool find_runs(const LlmrunOp& op);
  bool find_certain(const LlmrunOp& op);
  void reserve_row(int64_t cols);
  bool group_rows(const LlmrunOp& op);
  void place_partials(const LlmrunOp& op);

  int threads_;
  size_t scratch_bytes_ = 64;
  std::vector<LlmrunOp> ops_;
  std::vector<Phase> phases_;
  std::vector<AttentionGroup> groups_;
  std::vector<Run> runs_;
  std::vector<uint32_t> slot_marks_;  // which slots the current plan has met
  uint32_t mark_ = 0;
  AttentionPlan plan_ = {};
  float* partials_ = nullptr;
  size_t partial_bytes_ = 0;
};

// Throws std::invalid_argument when an op's numbers or pointers cannot be right.
void check_op(const LlmrunOp& op);
// The part of it for ops of program_streams.cpp; null when all is well, else what is wrong.
const char* fault_of_streams(const LlmrunOp& op);

}  // namespace llmrun
