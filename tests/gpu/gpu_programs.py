"""What the programs of the tests' other processes begin with."""

from pathlib import Path

GPU = f"""
import time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from gpu_work import *
from gpu_work import WORDS
from ec_ipc._core import Outcome
"""
