"""Turn warnings into errors in a kernel of the tests, which nbval has no option for."""

import warnings

warnings.simplefilter("error")
# With smoke parameters a model learns little.
warnings.filterwarnings("ignore", "the model before compression cannot be told from chance")
# pandas copies a tensor, which torch has no argument for.
warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword")
# ipykernel itself, while it ends.
warnings.filterwarnings("ignore", "For consistency across implementations")
