"""What the device can do: descriptions, probing, and targets."""

from felixlike.hardware.device import Device
from felixlike.hardware.probe import host_device
from felixlike.hardware.target import Target, resolve_target

__all__ = ["Device", "Target", "host_device", "resolve_target"]
