"""Seconds of one optimizer step: FLOPs, rates of the card, traffic, launches and communication."""
