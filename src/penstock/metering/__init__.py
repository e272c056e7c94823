"""The shipped example: meter readings priced by tariffs. The only package that knows of meters.

It is built from what every user has: a pipeline is a parse and an evaluate function over pyspark
DataFrames (`penstock.spark.pipeline`), prices are documents of a space (`penstock.client.runtime`).
"""
