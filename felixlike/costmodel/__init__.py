"""Predict latency from features by a small ensemble of networks that learns from measurements."""

from felixlike.costmodel.dataset import Dataset
from felixlike.costmodel.mlp import Network
from felixlike.costmodel.model import CostModel, load
from felixlike.costmodel.train import Training, train
from felixlike.costmodel.weights import load_weights, read_card, save_weights
from felixlike.errors import InvalidWeights

__all__ = [
    "CostModel",
    "Dataset",
    "InvalidWeights",
    "Network",
    "Training",
    "load",
    "load_weights",
    "read_card",
    "save_weights",
    "train",
]
