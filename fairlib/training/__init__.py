"""The training loop, the places where constraints and teachers plug into it, and trained models
kept on disk."""

from fairlib.training import augmentation, cache, compressors, distillation, group_losses, together
from fairlib.training.augmentation import AUGMENTATIONS
from fairlib.training.gradients import taken_gradient, with_gradient
from fairlib.training.loop import (
    LR_SCHEDULES,
    OPTIMIZERS,
    DivergenceError,
    LoopSettings,
    Training,
)
from fairlib.training.protocols import Batch, Constraint, ConstraintRun, Objective, Sparsifier
from fairlib.training.together import carry_out, fit, fit_all, fit_many

__all__ = ["AUGMENTATIONS", "LR_SCHEDULES", "OPTIMIZERS", "DivergenceError", "LoopSettings"]
__all__ += ["Batch", "Constraint", "ConstraintRun", "Objective", "Sparsifier", "Training"]
__all__ += ["carry_out", "fit", "fit_all", "fit_many", "taken_gradient", "with_gradient"]
__all__ += ["augmentation", "cache", "compressors", "distillation", "group_losses", "together"]
