from fairlib.pruning.bilevel import search_epochs


def test_the_mask_is_learned_in_three_quarters_of_the_epochs_rounded_up():
    assert [search_epochs(epochs) for epochs in (1, 2, 3, 4, 5, 10, 100)] == [1, 2, 3, 3, 4, 8, 75]
