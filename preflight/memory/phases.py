"""Which tensors live at the same time? The moments of a step and of an evaluation that can be the peak, term by term.

GPT-2-sized models peak when the loss is differentiated (the logits), deep ones when the first layer's backward begins,
large ones with few tokens at the end of the backward pass, when all gradients are there, or in the optimizer's step.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.memory import head_moments, moments
from preflight.memory.activations import activations_of
from preflight.memory.moments import TOKEN_BYTES, Moment, Scene
from preflight.memory.states import States, states_of
from preflight.memory.workload import NO_SHARDS, Workload
from preflight.plan import Checkpointing

N_BATCHES = 2  # the one in work and the one fetched for the next pass

# Terms that grow with the micro-batch; the others depend on the model alone.
TOKEN_TERMS = (
    "inputs",
    "activations_residual",
    "activations_attention",
    "activations_mlp",
    "activations_norms",
    "working_tensors",
    "logits_and_loss",
)


class Phases(NamedTuple):
    """One rank in the steady state: the optimizer's states exist."""

    n_params: int
    weights: int
    frozen_weights: int
    optimizer_states: int
    bucket_copies: int
    communication: int  # fixed buffers of a framework's own
    inputs: int
    checkpoint: int  # bytes of one on disk
    checkpoint_copy: int  # the one that a thread writes
    loss_hole: int  # free memory between living tensors at the loss's backward pass
    layer_activations: int  # of one layer, whole
    layers_gradients: int  # of all layers, without embeddings and head
    moments: dict[str, Moment]

    def token_bytes(self, name: str) -> int:
        """The part of a phase that grows with the micro-batch."""
        return self.inputs + self.moments[name].token_bytes

    def totals(self, token_factor: float) -> dict[str, float]:
        """Bytes of each phase, what grows with the micro-batch multiplied by a factor."""
        always = self.weights + self.frozen_weights + self.optimizer_states + self.bucket_copies + self.communication
        always += self.checkpoint_copy
        tokens = token_factor * self.inputs
        return {
            name: always + tokens + moment.fixed_bytes + token_factor * moment.token_bytes
            for name, moment in self.moments.items()
        }


def phases_of(work: Workload) -> Phases:
    """Every moment that can be the peak."""
    states, acts = states_of(work), activations_of(work)
    scene = Scene(work, states, acts)
    kept_logits = work.numerics.compute * acts.logits if work.keeps_logits else 0
    all_casts = work.model.n_layer * states.layer_casts + states.head_cast
    # autocast forgets what nothing saved
    left_casts = all_casts if work.recompute is Checkpointing.none else states.head_cast
    between_steps = states.gradients if work.has_buckets else 0  # gradients are gone (set_to_none), buckets are not
    return Phases(
        n_params=states.n_params,
        weights=states.weights,
        frozen_weights=states.frozen_weights,
        optimizer_states=states.optimizer,
        bucket_copies=states.bucket_copies,
        communication=work.communication_bytes,
        inputs=2 * N_BATCHES * TOKEN_BYTES * work.n_tokens + kept_logits,
        checkpoint=states.checkpoint,
        checkpoint_copy=states.checkpoint if work.copies_checkpoint else 0,
        loss_hole=0 if work.keeps_logits else work.numerics.loss_hole_bytes_per_logit * acts.logits,
        layer_activations=sum(acts.layer),
        layers_gradients=work.model.n_layer * states.layer_gradient,
        moments={
            "forward": head_moments.forward(scene, all_casts),
            "loss_backward": head_moments.loss_backward(scene, left_casts),
            "head_backward": head_moments.head_backward(scene, left_casts),
            "layer_backward": moments.layer_backward(scene),
            "backward_end": moments.backward_end(scene),
            "optimizer_step": Moment(gradients=states.gradients, gradients_in_flight=states.optimizer_working),
            "evaluation": head_moments.evaluation(scene, between_steps, all_casts),
            "checkpoint": Moment(gradients=between_steps, gradients_in_flight=_put_together_bytes(work, states)),
            "resume": Moment(
                gradients_in_flight=_read_bytes(work, states),
                gathered_weights=states.whole_weights if work.loads_whole_weights else 0,
            ),
        },
    )


def _put_together_bytes(work: Workload, states: States) -> int:
    """Rank 0 collects the other ranks' parts, in the memory of a processor; a card only ever holds one tensor whole."""
    if work.shards == NO_SHARDS:
        return 0
    if work.checkpoints_in_memory:
        return states.checkpoint
    return states.head_gradient if work.shards.gathered else 0


def _read_bytes(work: Workload, states: States) -> int:
    """Weights are copied out of what was read; the optimizer takes its states as they are, or a slice of each."""
    if not work.checkpoints_in_memory:
        return 0
    return states.weights if work.shards == NO_SHARDS else states.checkpoint


def terms_of(phases: Phases, name: str, token_factor: float) -> dict[str, int]:
    """One phase's working."""
    moment = phases.moments[name]
    terms = {
        "weights": phases.weights,
        "frozen_weights": phases.frozen_weights,
        "gradients": moment.gradients,
        "gradients_in_flight": moment.gradients_in_flight,
        "gradient_buckets": phases.bucket_copies,
        "optimizer_states": phases.optimizer_states,
        "gathered_weights": moment.gathered_weights,
        "weight_casts": moment.weight_casts,
        "communication_buffers": phases.communication,
        "checkpoint_copy": phases.checkpoint_copy,
        "activations_residual": moment.saved.residual,
        "activations_attention": moment.saved.attention,
        "activations_mlp": moment.saved.mlp,
        "activations_norms": moment.saved.norms,
        "working_tensors": moment.working_tensors,
        "logits_and_loss": moment.logits_and_loss,
        "inputs": phases.inputs,
    }
    if token_factor != 1.0:
        terms |= {term: round(token_factor * terms[term]) for term in TOKEN_TERMS}
    return terms
