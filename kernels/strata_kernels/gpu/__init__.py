"""Operations on a GPU: arrays in its memory, launches of ahead-of-time compiled kernels, the driver behind them."""
