"""A step of a meter in a plain loop."""


def one_step(meter, theta, prompts=(0, 0, 1, 1), grads=(1.0, 2.0, 3.0, 4.0), **options):
    for prompt, value in zip(prompts, grads, strict=True):
        with meter.micro_batch([prompt], **options):
            if value is not None:
                (value * theta).sum().backward()
    return meter.step()
