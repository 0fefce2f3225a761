"""Which tensors live at the same time? The moments of a step and of an evaluation that can be the peak, term by term.

GPT-2-sized models peak when the loss is differentiated (the logits), deep ones when the first layer's backward begins,
large ones with few tokens at the end of the backward pass, when all gradients are there, or in the optimizer's step.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.memory import moments
from preflight.memory.activations import activations_of
from preflight.memory.moments import TOKEN_BYTES, Moment, Scene
from preflight.memory.states import states_of
from preflight.memory.workload import Workload
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
    n_casts = work.model.n_layer
    all_casts = n_casts * states.layer_casts + states.head_cast
    # autocast forgets what nothing saved
    left_casts = states.head_cast if work.recompute is Checkpointing.full else all_casts
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
        loss_hole=0 if work.keeps_logits else work.numerics.loss_hole_bytes_per_logit * acts.logits,
        layer_activations=sum(acts.layer),
        layers_gradients=work.model.n_layer * states.layer_gradient,
        moments={
            "forward": moments.forward(scene, all_casts),
            "loss_backward": moments.loss_backward(scene, left_casts),
            "head_backward": moments.head_backward(scene, left_casts),
            "layer_backward": moments.layer_backward(scene),
            "backward_end": moments.backward_end(scene),
            "optimizer_step": Moment(gradients=states.gradients, gradients_in_flight=states.optimizer_working),
            "evaluation": moments.evaluation(scene, between_steps, all_casts),
            "checkpoint": Moment(gradients=between_steps),
            "resume": Moment(gradients_in_flight=states.weights if work.loads_into_memory else 0),
        },
    )


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
