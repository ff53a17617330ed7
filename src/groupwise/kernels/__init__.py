"""Triton kernels, shared by the engine and the learner. Imported on a GPU only; nothing here knows of either."""
