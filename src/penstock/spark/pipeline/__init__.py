"""Pipelines on Spark: from a raw topic over parse and evaluate into the lake, exactly once."""

from __future__ import annotations

from penstock.spark.pipeline.definition import Pipeline

__all__ = ["Pipeline"]
