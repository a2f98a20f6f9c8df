"""The terms of a text: languages, stop words, and parts of identifiers."""

import unicodedata
from typing import Any

import pytest

from indexer.errors import ConfigError, MachineError
from indexer.recipe.ranking import LANGUAGES, HybridConfig
from search.ranking.terms import terms_key, terms_parameters, tokenize


def terms(text: str, **settings: Any) -> list[str]:
    (found,) = tokenize([text], "hybrid", HybridConfig(**settings))
    return found


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("english", "The whales were singing", ["whale", "were", "sing"]),
        ("german", "Die Häuser und der Gärten", ["haus", "gart"]),
        ("french", "les chevaux de la maison", ["cheval", "maison"]),
        ("finnish", "talossa on", ["talo", "on"]),  # stemmed, and no stop words are known
        ("none", "The whales were singing", ["the", "whales", "were", "singing"]),
    ],
)
def test_words_are_stemmed_and_stopped_by_language(language: str, text: str, expected: list[str]) -> None:
    assert terms(text, language=language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("read_csv", ["read_csv", "read", "csv"]),
        ("getHTTPResponse", ["gethttpresponse", "get", "http", "response"]),
        ("__init__", ["__init__"]),
        ("os.path.getmtime(x)", ["os", "path", "getmtime", "x"]),
        ("sha256", ["sha256"]),
        ("MAX_SIZE_2", ["max_size_2", "max", "size", "2"]),
        ("größeVonÄpfeln", ["größevonäpfeln", "größe", "von", "äpfeln"]),
        ("x86_64 C", ["x86_64", "x86", "64", "c"]),
        ("", []),
    ],
)
def test_code_has_the_parts_of_identifiers_beside_the_whole(text: str, expected: list[str]) -> None:
    assert terms(text, language="none", terms="code") == expected


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("hindi", "भारत की राजधानी नई दिल्ली है"),
        ("nepali", "काठमाडौं नेपालको राजधानी हो"),
        ("tamil", "சென்னை தமிழ்நாட்டின் தலைநகரம் ஆகும்"),
        ("arabic", "العَرَبِيَّة لُغَة جَمِيلَة"),
        ("yiddish", "ייִדישע שפּראַך"),
        ("none", "cafe\u0301 re\u0301sume\u0301 नमस्ते"),
    ],
)
def test_marks_belong_to_their_words(language: str, text: str) -> None:
    """Vowel signs, accents and points: as many terms as words, and unstemmed the composed words themselves."""
    assert len(terms(text, language=language)) == len(text.split())
    assert terms(text, language="none") == unicodedata.normalize("NFC", text).split()
    assert terms(text, language="none", terms="code") == terms(text, language="none")


def test_composed_and_decomposed_letters_are_the_same_word() -> None:
    for form in ("NFC", "NFD"):
        assert terms(unicodedata.normalize(form, "élève"), language="french") == ["élev"]


def test_turkish_has_its_own_capitals() -> None:
    assert terms("İstanbul ISPARTA", language="turkish") == terms("istanbul \u0131sparta", language="turkish")


def test_words_have_two_letters_and_stay_whole() -> None:
    assert terms("x read_csv C++", language="none") == ["read_csv"]


def test_every_language_of_a_recipe_can_be_used_or_says_what_to_install() -> None:
    import Stemmer

    assert set(LANGUAGES) <= set(Stemmer.algorithms())
    for language in LANGUAGES:
        assert terms("abcdef", language=language) != []


def test_a_stemmer_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import Stemmer

    monkeypatch.setattr(Stemmer, "algorithms", lambda: ["english"])
    with pytest.raises(MachineError, match=r'has no stemmer for hybrid\.language "polish".*hybrid\.language = "none"'):
        terms("dom", language="polish")


def test_an_unknown_language_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r'hybrid\.language is "klingon"; expected arabic, .*"none" for words as'):
        HybridConfig(language="klingon")


def test_what_decides_terms_is_told() -> None:
    assert terms_parameters(HybridConfig()) == {
        "stemmer": "english (Snowball)",
        "stopwords": "english",
        "terms": "words",
    }
    assert terms_parameters(HybridConfig(language="none", terms="code")) == {
        "stemmer": "none", "stopwords": "none", "terms": "code"
    }  # fmt: skip
    keys = [terms_key(one) for one in (HybridConfig(), HybridConfig(language="none"), HybridConfig(terms="code"))]
    assert len({str(key) for key in keys}) == 3
    assert terms_key(HybridConfig(weight=0.9, scaling="zscore", fusion="rrf")) == keys[0]
