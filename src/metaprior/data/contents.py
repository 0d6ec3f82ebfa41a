"""What the data sets hold when they are whole. A copy that lacks something is refused by the names of what it lacks."""

from collections.abc import Mapping
from typing import NamedTuple


class Omniglot(NamedTuple):
    """Handwritten characters of 50 alphabets (Lake et al. 2015)."""

    halves: Mapping[str, Mapping[str, int]]  # file -> alphabet -> number of its characters
    drawings: int  # of each character
    split: tuple[int, int, int]  # characters in train, validation and test

    def characters(self, half: str) -> list[str]:
        """The characters of one half, "alphabet/characterNN"."""
        return [
            f"{alphabet}/character{number:02d}"
            for alphabet, count in self.halves[half].items()
            for number in range(1, count + 1)
        ]


class MiniImageNet(NamedTuple):
    """100 classes of ImageNet in small (Vinyals et al. 2016), in the split of Ravi & Larochelle (2017)."""

    classes: Mapping[str, tuple[str, ...]]  # split -> WordNet ids
    images: int  # of each class


OMNIGLOT = Omniglot(
    halves={
        "images_background": {
            "Alphabet_of_the_Magi": 20, "Anglo-Saxon_Futhorc": 29, "Arcadian": 26, "Armenian": 41,
            "Asomtavruli_(Georgian)": 40, "Balinese": 24, "Bengali": 46, "Blackfoot_(Canadian_Aboriginal_Syllabics)": 14,
            "Braille": 26, "Burmese_(Myanmar)": 34, "Cyrillic": 33, "Early_Aramaic": 22, "Futurama": 26, "Grantha": 43,
            "Greek": 24, "Gujarati": 48, "Hebrew": 22, "Inuktitut_(Canadian_Aboriginal_Syllabics)": 16,
            "Japanese_(hiragana)": 52, "Japanese_(katakana)": 47, "Korean": 40, "Latin": 26, "Malay_(Jawi_-_Arabic)": 40,
            "Mkhedruli_(Georgian)": 41, "N_Ko": 33, "Ojibwe_(Canadian_Aboriginal_Syllabics)": 14, "Sanskrit": 42,
            "Syriac_(Estrangelo)": 23, "Tagalog": 17, "Tifinagh": 55,
        },
        "images_evaluation": {
            "Angelic": 20, "Atemayar_Qelisayer": 26, "Atlantean": 26, "Aurek-Besh": 26, "Avesta": 26, "Ge_ez": 26,
            "Glagolitic": 45, "Gurmukhi": 45, "Kannada": 41, "Keble": 26, "Malayalam": 47, "Manipuri": 40, "Mongolian": 30,
            "Old_Church_Slavonic_(Cyrillic)": 45, "Oriya": 46, "Sylheti": 28, "Syriac_(Serto)": 23, "Tengwar": 25,
            "Tibetan": 42, "ULOG": 26,
        },
    },
    drawings=20,
    split=(1100, 100, 423),
)  # fmt: skip

MINIIMAGENET = MiniImageNet(
    classes={
        "train": (
            "n01532829", "n01558993", "n01704323", "n01749939", "n01770081", "n01843383", "n01910747", "n02074367",
            "n02089867", "n02091831", "n02101006", "n02105505", "n02108089", "n02108551", "n02108915", "n02111277",
            "n02113712", "n02120079", "n02165456", "n02457408", "n02606052", "n02687172", "n02747177", "n02795169",
            "n02823428", "n02966193", "n03017168", "n03047690", "n03062245", "n03207743", "n03220513", "n03337140",
            "n03347037", "n03400231", "n03476684", "n03527444", "n03676483", "n03838899", "n03854065", "n03888605",
            "n03908618", "n03924679", "n03998194", "n04067472", "n04243546", "n04251144", "n04258138", "n04275548",
            "n04296562", "n04389033", "n04435653", "n04443257", "n04509417", "n04515003", "n04596742", "n04604644",
            "n04612504", "n06794110", "n07584110", "n07697537", "n07747607", "n09246464", "n13054560", "n13133613",
        ),
        "validation": (
            "n01855672", "n02091244", "n02114548", "n02138441", "n02174001", "n02950826", "n02971356", "n02981792",
            "n03075370", "n03417042", "n03535780", "n03584254", "n03770439", "n03773504", "n03980874", "n09256479",
        ),
        "test": (
            "n01930112", "n01981276", "n02099601", "n02110063", "n02110341", "n02116738", "n02129165", "n02219486",
            "n02443484", "n02871525", "n03127925", "n03146219", "n03272010", "n03544143", "n03775546", "n04146614",
            "n04149813", "n04418357", "n04522168", "n07613480",
        ),
    },
    images=600,
)  # fmt: skip
