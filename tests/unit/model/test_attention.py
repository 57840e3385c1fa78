import torch

from scalerl.model.attention import FLOAT64, trainer_attention
from scalerl.model.tiny import tiny_model


def test_float64_attention_is_the_models_own_to_rounding_masks_included():
    model = tiny_model(seed=0, kv_heads=2)
    ids = torch.randint(2, 32, (3, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0  # left padding
    plain = model(ids, attention_mask=mask).logits
    with trainer_attention(model):
        assert model.config._attn_implementation == FLOAT64
        exact = model(ids, attention_mask=mask).logits
    assert model.config._attn_implementation == "sdpa"
    kept = mask.bool()
    torch.testing.assert_close(exact[kept], plain[kept], rtol=0, atol=1e-6)
    reference = model.double()(ids, attention_mask=mask).logits
    torch.testing.assert_close(exact[kept].double(), reference[kept], rtol=0, atol=1e-6)


def test_other_implementations_and_types_are_left_alone():
    eager = tiny_model(seed=0)
    eager.set_attn_implementation("eager")
    for model, name in ((eager, "eager"), (tiny_model(seed=0).to(torch.bfloat16), "sdpa")):
        with trainer_attention(model):
            assert model.config._attn_implementation == name
