"""Pools whose machines this package never makes, sizes or removes: bare metal, and nodes that a provisioner brings."""
