"""What lives at one moment of a step? Beyond weights, optimizer states and inputs, which are always there."""

from __future__ import annotations

from typing import NamedTuple

from preflight.memory.activations import Activations, Layers
from preflight.memory.states import States
from preflight.memory.workload import Workload
from preflight.plan import Checkpointing

TOKEN_BYTES = 8  # int64
NO_LAYERS = Layers(0, 0, 0, 0)


class Moment(NamedTuple):
    """Bytes by what they are."""

    saved: Layers = NO_LAYERS
    gradients: int = 0
    gradients_in_flight: int = 0
    weight_casts: int = 0
    working_tensors: int = 0
    logits_and_loss: int = 0
    gathered_weights: int = 0  # units that are whole, or dequantised, for the while

    @property
    def fixed_bytes(self) -> int:
        """What the model alone decides."""
        return self.gradients + self.gradients_in_flight + self.weight_casts + self.gathered_weights

    @property
    def token_bytes(self) -> int:
        """What grows with the micro-batch."""
        return sum(self.saved) + self.working_tensors + self.logits_and_loss


class Scene(NamedTuple):
    """What every moment is made from."""

    work: Workload
    states: States
    acts: Activations

    @property
    def everything_saved(self) -> Layers:
        """What the whole forward pass keeps: of every layer, and the final norm."""
        n_layer, kept, final_norm = self.work.model.n_layer, self.acts.kept, self.acts.final_norm
        if self.work.recompute is Checkpointing.full:
            return Layers(n_layer * kept.residual + final_norm, 0, 0, 0)
        residual, attention, mlp, norms = kept
        outside = final_norm - self.acts.never_kept
        return Layers(n_layer * residual + outside, n_layer * attention, n_layer * mlp, n_layer * norms)


def layer_backward(scene: Scene) -> Moment:
    """From the last layer to the first, activations go and gradients come, both evenly: an end is the peak."""
    last = _backward_of_layer(scene, scene.work.model.n_layer)
    return larger(last, _backward_of_layer(scene, 1))


def _backward_of_layer(scene: Scene, n_left: int) -> Moment:
    """`n_left` layers' activations are left, the current one's included; it is recomputed first if it was not kept."""
    work, states, acts = scene
    saved = Layers(*(whole + (n_left - 1) * kept for whole, kept in zip(acts.layer, acts.kept, strict=True)))
    n_cast = n_left if work.recompute is Checkpointing.none else 1
    waiting = 0
    if work.keeps_gradients:
        gradients = states.kept_gradients
        waiting = states.head_gradient if work.model.tied_head else 0
    else:
        done = (work.model.n_layer - n_left) * states.layer_gradient
        gradients = (states.head_gradient + done) // work.shards.gradients
    return Moment(
        saved,
        gradients,
        states.unit_gradients if work.shards.gathered else states.widest_matrix + waiting,
        n_cast * states.layer_casts,
        acts.backward_working,
        gathered_weights=states.gathered + states.dequantised,
    )


def backward_end(scene: Scene) -> Moment:
    """The embeddings' gradients are made dense; a tied one is added to the head's, then to what is kept.

    Autograd adds in place only into a tensor that nobody shares: a cast one, but not a matmul's transposed result.
    """
    work, states, acts = scene
    n_waiting, n_kept = int(work.model.tied_head), int(work.keeps_gradients)
    n_sums = n_waiting * (not work.numerics.casts_weights)
    token = (n_waiting + n_sums + n_kept) * states.head_gradient
    position = n_waiting * n_kept * states.head_gradient + (1 + n_kept) * states.position_gradient
    return Moment(
        gradients=states.gradients,
        gradients_in_flight=max(token, position, states.unit_gradients),
        working_tensors=acts.block_input,
        gathered_weights=states.gathered,
    )


def larger(one: Moment, other: Moment) -> Moment:
    """The one with more bytes."""
    return one if one.fixed_bytes + one.token_bytes >= other.fixed_bytes + other.token_bytes else other
