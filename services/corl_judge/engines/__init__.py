"""Engines that sample from a member's model: vLLM, transformers."""
