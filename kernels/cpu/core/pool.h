// Persistent threads that run a program's phases. The caller is worker 0; idle workers spin briefly, then sleep.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <mutex>

#include "program.h"

namespace llmrun {

class Crew;

class Pool {
 public:
  Pool(int threads, const KernelTable& table);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  const KernelTable& table() const { return table_; }

  // Runs all phases; returns the program's status. One run at a time. After a fork the child gets fresh threads.
  int32_t run(Program* program);

 private:
  const int threads_;
  const KernelTable& table_;
  std::mutex running_;
  std::unique_ptr<Crew> crew_;
};

}  // namespace llmrun
