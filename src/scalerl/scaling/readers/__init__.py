"""Readers of curve files: run directories, JSONL, CSV, W&B exports, TensorBoard, SQLite."""
