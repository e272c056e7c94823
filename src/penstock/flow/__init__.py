"""Scheduling and back-pressure without IO: what runs next, how much, how hard, when to retry.

Pressure changes *when* work happens. It never changes *whether* it happens, its order within a key,
or what is visible. Clock and random source are passed in.
"""
