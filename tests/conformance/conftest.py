"""Drivers import what is not installed: they are collected by no one."""

collect_ignore_glob = ["[!_]*.py"]
