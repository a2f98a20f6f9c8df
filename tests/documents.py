"""Nine short documents with titles and metadata, which many tests build an index of."""

from indexer import Document

DOCUMENTS = [
    Document(f"d{number}", text, title=title, metadata={"year": 1990 + number})
    for number, (title, text) in enumerate(
        [
            ("Whales", "Whales sing in the deep sea for hours."),
            ("Bridges", "A suspension bridge hangs from steel cables."),
            ("Bread", "Yeast makes the dough rise before baking."),
            ("Stars", "A star shines by fusing hydrogen to helium."),
            ("Rivers", "Rivers carry sand and silt to the coast."),
            ("Clocks", "The pendulum made clocks precise."),
            ("Bees", "Bees dance to tell where flowers are."),
            ("Glass", "Glass is made of molten sand."),
            ("Maps", "A map leaves out nearly everything."),
        ]
    )
]
