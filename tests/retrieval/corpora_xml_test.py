"""Parsers of XML sources, on small files of the true shape.

Only synthetic files stand here. StatPearls was never seen in the original by
these tests' author; its files follow its published format.
"""

import gzip
import zipfile

import pytest

from varl_jax.retrieval.corpora import SOURCES, icd10cm
from varl_jax.retrieval.corpora.files import CorpusError


def read(source, file):
  return list(SOURCES[source].passages(file))


def write(path, text):
  path.write_text(text, encoding="utf-8")
  return path


ICD = """<?xml version='1.0' encoding='utf-8'?>
<ICD10CM.tabular><version>2030</version>
<introduction><introSection><title>Words</title></introSection></introduction>
<chapter><name>1</name><desc>Sore parts (Q00-Q99)</desc>
 <excludes2><note>happy parts (R00-R99)</note></excludes2>
 <sectionIndex><sectionRef first="Q00" last="Q09">Knees</sectionRef>
 </sectionIndex>
 <section id="Q00-Q09"><desc>Sore knees (Q00-Q09)</desc>
  <diag><name>Q00</name><desc>Sore &amp; swollen
     knee</desc>
   <includes><note>knee ache NOS</note></includes>
   <excludes1><note>sore elbow (Q20.-)</note></excludes1>
   <sevenChrNote><note>Add one:</note></sevenChrNote>
   <sevenChrDef><extension char="A">initial encounter</extension>
    <extension char="S">sequela</extension></sevenChrDef>
   <diag><name>Q00.1</name><desc>Sore knee, right</desc>
    <inclusionTerm><note>Maid's <b>knee</b></note></inclusionTerm>
    <diag><name>Q00.11</name><desc>Sore knee, right, by falls</desc></diag>
   </diag>
   <diag><name>Q00.2</name><desc>Sore knee, left</desc>
    <codeFirst><note>the fall (W00)</note></codeFirst></diag>
  </diag>
 </section>
</chapter>
<chapter><name>2</name><desc>Else (R00-R99)</desc>
 <section id="R00"><desc>Rest (R00)</desc>
  <diag><name>R00</name><desc>Rest</desc></diag></section>
</chapter>
</ICD10CM.tabular>
"""


def test_icd10cm_gives_every_code_with_where_it_stands(tmp_path):
  found = read("icd10cm", write(tmp_path / "t.xml", ICD))
  assert [p.passage_id for p in found] == [
    f"icd10cm:{code}" for code in ("Q00", "Q00.1", "Q00.11", "Q00.2", "R00")
  ]
  top, right, fall, left, rest = found
  assert top.title == "Q00 Sore & swollen knee"
  assert top.keys == (
    "Sore & swollen knee",
    "knee ache NOS",
    "knee ache",
    "Q00",
  )
  assert "Not coded here: sore elbow (Q20.-)" in top.text
  assert "Seventh" not in top.text  # only what is coded to the end takes one
  assert right.keys[1] == "Maid's knee"
  assert fall.text.splitlines()[1] == (
    "Under: Sore parts (Q00-Q99) > Sore knees (Q00-Q09) > Q00 Sore & swollen"
    " knee > Q00.1 Sore knee, right"
  )
  assert "Seventh character: A initial encounter; S sequela" in fall.text
  assert "Code first: the fall (W00)" in left.text
  assert "Seventh" not in rest.text
  assert rest.text.splitlines()[1] == "Under: Else (R00-R99) > Rest (R00)"
  assert {p.licence for p in found} == {"US government work"}
  assert all(p.attribution for p in found)


def test_icd10cm_without_chapters_is_read(tmp_path):
  text = "<x><version>1</version><diag><name>A</name><desc>b</desc></diag></x>"
  [found] = read("icd10cm", write(tmp_path / "t.xml", text))
  assert found.title == "A b" and found.text == "b"
  with pytest.raises(CorpusError, match="holds no code"):
    read("icd10cm", write(tmp_path / "u.xml", "<x/>"))


LABEL = """<?xml version="1.0" encoding="UTF-8"?>
<?xml-stylesheet href="spl.xsl" type="text/xsl"?>
<document xmlns="urn:hl7-org:v3" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
 <title>Stop<br/>Itch <content>CREAM</content></title>
 <setId root="11-22"/><versionNumber value="3"/>
 <component><structuredBody>
  <component><section><code code="48780-1"/>
   <subject><manufacturedProduct><manufacturedProduct><name>Stop Itch</name>
    <asEntityWithGeneric><genericMedicine><name>itchine</name></genericMedicine>
    </asEntityWithGeneric></manufacturedProduct></manufacturedProduct></subject>
  </section></component>
  <component><section><code code="34067-9"/>
   <text><paragraph>For <content styleCode="bold">itching</content>
     skin of the arms.</paragraph></text>
   <excerpt><highlight><text><paragraph>For itching, in short.</paragraph>
   </text></highlight></excerpt>
   <component><section><title>Children</title>
     <code code="42229-5" displayName="SPL UNCLASSIFIED SECTION"/>
     <text>Not for any of them:<list><caption>Ages</caption>
      <item>under two<list><item>not even once</item></list></item>
      <item><caption>b</caption>two to six</item></list></text>
   </section></component>
  </section></component>
  <component><section>
   <code code="50569-3" displayName="OTC - ASK DOCTOR SECTION"/>
   <text><table><caption>Doses to use</caption><thead><tr><th>Age</th>
     <th>Dose</th></tr></thead>
    <tbody><tr><td>6 years</td><td>5 mg</td></tr></tbody></table></text>
  </section></component>
  <component><section>
   <code code="42229-5" displayName="SPL UNCLASSIFIED SECTION"/>
   <text><paragraph>Drug Facts</paragraph></text></section></component>
  <component><section><code code="51945-4"/>
   <text><paragraph>A picture of the box</paragraph></text></section>
  </component>
 </structuredBody></component>
</document>
"""


def check_label(found):
  assert [(p.title, p.text) for p in found] == [
    (
      "Stop Itch CREAM (itchine) -- Indications and usage",
      "For itching skin of the arms.",
    ),
    (
      "Stop Itch CREAM (itchine) -- Indications and usage -- Children",
      "Not for any of them:\nAges\n- under two\n  - not even once\n"
      "- b two to six",
    ),
    (
      "Stop Itch CREAM (itchine) -- Ask doctor",
      "Doses to use\nAge | Dose\n6 years | 5 mg",
    ),
  ]
  assert [p.passage_id for p in found] == [
    f"dailymed:11-22_{i}" for i in range(3)
  ]
  assert all(p.url.endswith("setid=11-22") for p in found)


def test_dailymed_reads_nested_sections_lists_and_tables(tmp_path):
  check_label(read("dailymed", write(tmp_path / "label.xml", LABEL)))


def test_dailymed_reads_zips_in_zips(tmp_path):
  with zipfile.ZipFile(tmp_path / "one.zip", "w") as inner:
    inner.writestr("a/label.xml", LABEL)
    inner.writestr("a/box.jpg", b"\xff\xd8")
  with zipfile.ZipFile(tmp_path / "all.zip", "w") as outer:
    outer.write(tmp_path / "one.zip", "prescription/one.zip")
  check_label(read("dailymed", tmp_path / "one.zip"))
  check_label(read("dailymed", tmp_path / "all.zip"))
  whole = (tmp_path / "all.zip").read_bytes()
  (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
  with pytest.raises(CorpusError, match=r"cut\.zip is truncated or damaged"):
    read("dailymed", tmp_path / "cut.zip")


def test_a_document_that_is_no_label_is_named(tmp_path):
  with pytest.raises(CorpusError, match=r"no\.xml has no setId"):
    read("dailymed", write(tmp_path / "no.xml", "<document/>"))


TOPICS = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE health-topics SYSTEM "mplus_topics.dtd">
<health-topics total="2">
<health-topic title="Sore Knee" url="https://example.org/knee" id="7"
  language="English">
<also-called>Knee ache</also-called><also-called>Sore Knee</also-called>
<full-summary>&lt;h3&gt;What is it?&lt;/h3&gt;&lt;p&gt;A knee that &lt;a
 href="x"&gt;hurts&lt;/a&gt;, &amp;amp; swells &amp;gt; 1 cm.&lt;/p&gt;
 &lt;ul&gt;&lt;li&gt;Rest&lt;/li&gt;&lt;li&gt;Ice&lt;/li&gt;&lt;/ul&gt;
 &lt;script&gt;run()&lt;/script&gt;</full-summary>
<mesh-heading><descriptor id="D1">Knee Injuries</descriptor></mesh-heading>
<site title="A site"><information-category>x</information-category></site>
</health-topic>
<health-topic title="Rodilla" id="8" language="Spanish"><full-summary>&lt;p&gt;
Duele&lt;/p&gt;</full-summary></health-topic>
</health-topics>
"""


def test_medlineplus_reads_english_topics_without_markup(tmp_path):
  [found] = read("medlineplus", write(tmp_path / "m.xml", TOPICS))
  assert found.passage_id == "medlineplus:7_0"
  assert found.text == (
    "What is it?\nA knee that hurts, & swells > 1 cm.\nRest\nIce"
  )
  assert found.keys[1:] == ("Knee ache", "Knee Injuries")
  assert found.url == "https://example.org/knee"
  assert "MedlinePlus.gov" in found.attribution


def test_medlineplus_cuts_long_topics_and_drops_nothing(tmp_path):
  lines = "".join(f"&lt;p&gt;{f'word{i} ' * 40}&lt;/p&gt;" for i in range(30))
  text = TOPICS.replace("&lt;h3&gt;", lines + "&lt;h3&gt;")
  found = read("medlineplus", write(tmp_path / "m.xml", text))
  assert len(found) > 3 and max(len(p.text) for p in found) <= 1000
  whole = " ".join(p.text for p in found)
  assert [whole.split().count(f"word{i}") for i in range(30)] == [40] * 30
  assert len({p.passage_id for p in found}) == len(found)


PUBMED = """<?xml version="1.0" encoding="utf-8"?>
<PubmedArticleSet>
<PubmedArticle><MedlineCitation><PMID Version="1">11</PMID><Article>
 <Journal><JournalIssue><PubDate>
  <MedlineDate>1979 Jan-Feb</MedlineDate></PubDate></JournalIssue>
  <Title>J Knee</Title></Journal>
 <ArticleTitle>Effect of H<sub>2</sub>O on <i>sore</i> knees.</ArticleTitle>
 <Abstract>
  <AbstractText Label="UNLABELLED">First line
   goes on &lt; 5 mg/dl
   over three lines.</AbstractText>
  <AbstractText Label="RESULTS" NlmCategory="RESULTS">Water<sup>1</sup> helps
   (p&#x2009;&lt;&#x2009;0.05).</AbstractText>
  <AbstractText/>
  <CopyrightInformation>(c) nobody</CopyrightInformation>
 </Abstract></Article>
 <MeshHeadingList><MeshHeading><DescriptorName>Knee</DescriptorName>
  <QualifierName>injuries</QualifierName></MeshHeading></MeshHeadingList>
</MedlineCitation>
<PubmedData><ReferenceList><Reference><ArticleIdList>
 <ArticleId IdType="pubmed">99</ArticleId></ArticleIdList></Reference>
</ReferenceList></PubmedData></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>12</PMID><Article>
 <ArticleTitle>No abstract</ArticleTitle></Article></MedlineCitation>
</PubmedArticle>
<DeleteCitation><PMID>13</PMID></DeleteCitation>
</PubmedArticleSet>
"""


def test_pubmed_keeps_abstracts_whole(tmp_path):
  [found] = read("pubmed", write(tmp_path / "p.xml", PUBMED))
  assert found.passage_id == "pubmed:11"
  assert found.title == "Effect of H2O on sore knees."
  assert found.text == (
    "First line goes on < 5 mg/dl over three lines.\n"
    "RESULTS: Water1 helps (p < 0.05).\n(J Knee, 1979 Jan-Feb)"
  )
  assert found.keys[0].endswith("Knee")
  packed = tmp_path / "p.xml.gz"
  packed.write_bytes(gzip.compress(PUBMED.encode()))
  assert read("pubmed", packed) == [found]


def test_memory_stays_flat_over_many_records(tmp_path):
  """Records are dropped from the tree as soon as they are read."""
  from varl_jax.retrieval.corpora.markup import records

  head, body, tail = (
    PUBMED.partition("<PubmedArticle>")[0],
    "<PubmedArticle><MedlineCitation><PMID>1</PMID></MedlineCitation>"
    "</PubmedArticle>",
    "</PubmedArticleSet>",
  )
  file = write(tmp_path / "p.xml", head + body * 5000 + tail)
  with file.open("rb") as stream:
    alive = [len(list(r.iter())) for r in records(stream, "p", "PubmedArticle")]
  assert alive == [3] * 5000


STATPEARLS = """<?xml version="1.0"?>
<!DOCTYPE book-part-wrapper PUBLIC "-//NLM//DTD BITS" "BITS-book2.dtd">
<book-part-wrapper xmlns:xlink="http://www.w3.org/1999/xlink"{ns}>
<book-meta><book-title-group><book-title>All Pearls</book-title>
</book-title-group></book-meta>
<book-part book-part-type="chapter"><book-part-meta>
 <book-part-id book-part-id-type="pmcid">NBK77</book-part-id>
 <title-group><title>Sore Knee</title></title-group></book-part-meta>
<body>
 <sec><title>Continuing Education Activity</title>
  <p>{long} learn this.</p></sec>
 <sec><title>Introduction</title>
  <p>A knee that hurts.<xref ref-type="bibr" rid="r1">1</xref> It
   swells&nbsp;too [<xref rid="r2">2</xref>, <xref rid="r3">3</xref>].</p>
  <p>Short tail.</p>
  <p>{long} end.</p>
  <p><bold>Stages</bold></p>
  <p>{long} staged.</p>
  <sec><title>In children</title>
   <p>{long} young.</p>
   <list list-type="bullet"><list-item><p>Rest</p>
     <list><list-item><p>in bed</p></list-item></list></list-item>
    <list-item><p>Ice</p></list-item></list>
   <table-wrap><caption><p>Doses</p></caption><table><tr><th>Age</th><th>mg</th>
    </tr><tr><td>6</td><td>5</td></tr></table></table-wrap>
  </sec>
 </sec>
 <sec><title>Review Questions</title><p>Which one?</p></sec>
 <sec><title>References</title><p>1. Someone.</p></sec>
</body></book-part></book-part-wrapper>
"""


@pytest.mark.parametrize("ns", ["", ' xmlns="http://example.org/bits"'])
def test_statpearls_is_cut_as_medrag_cuts_it(tmp_path, ns):
  long = "The knee is a joint. " * 20
  file = tmp_path / "article-123.nxml"
  write(file, STATPEARLS.format(long=long.strip(), ns=ns))
  found = read("statpearls", file)
  assert [p.title for p in found] == [
    "Sore Knee -- Introduction",
    "Sore Knee -- Introduction -- Stages",
    "Sore Knee -- Introduction -- In children",
  ]
  intro, stages, children = found
  assert intro.text.startswith(
    "A knee that hurts. It swells too.\nShort tail.\nThe knee"
  )
  assert stages.text.endswith("joint. staged.")
  assert children.text.endswith(
    "young.\n- Rest\n  - in bed\n- Ice\nDoses\nAge | mg\n6 | 5"
  )
  assert [p.passage_id for p in found] == [
    f"statpearls:article-123_{i}" for i in range(3)
  ]
  assert all(p.url.endswith("/NBK77/") for p in found)
  text = " ".join(p.text for p in found)
  assert "learn this" not in text and "Which one" not in text
  assert "CC BY-NC-ND" in intro.licence


@pytest.mark.parametrize(
  ("source", "name", "text"),
  [
    ("icd10cm", "t.xml", ICD),
    ("dailymed", "l.xml", LABEL),
    ("medlineplus", "m.xml", TOPICS),
    ("pubmed", "p.xml", PUBMED),
    ("statpearls", "a.nxml", STATPEARLS.format(long="x", ns="")),
  ],
)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_files_and_pointers_are_named(
  tmp_path, source, name, text, share
):
  whole = text.encode()
  cut = tmp_path / name
  cut.write_bytes(whole[: int(len(whole) * share)])
  with pytest.raises(CorpusError, match=rf"{cut.name} is (truncated|empty)"):
    read(source, cut)
  pointer = write(
    tmp_path / f"lfs_{name}",
    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
  )
  with pytest.raises(CorpusError, match=r"lfs_.* is a Git LFS pointer"):
    read(source, pointer)


def test_truncated_gzip_is_named(tmp_path):
  packed = gzip.compress(PUBMED.encode() * 1)
  file = tmp_path / "p.xml.gz"
  file.write_bytes(packed[: len(packed) // 2])
  with pytest.raises(CorpusError, match=r"p\.xml\.gz is truncated or damaged"):
    read("pubmed", file)


def test_entities_do_not_reach_outside_the_file(tmp_path):
  secret = write(tmp_path / "secret.txt", "the secret")
  text = (
    f'<!DOCTYPE x [<!ENTITY e SYSTEM "file://{secret}">]>'
    "<x><diag><name>A</name><desc>b &e;</desc></diag></x>"
  )
  try:
    found = read("icd10cm", write(tmp_path / "t.xml", text))
  except CorpusError:
    return
  assert "secret" not in found[0].text


@pytest.mark.parametrize(
  ("name", "plain"),
  [
    ("Sore knee, unspecified knee", "Sore knee"),
    ("Fracture of unspecified part of knee", "Fracture of part of knee"),
    ("Hernia, without gangrene, not specified as recurrent", "Hernia"),
    ("Hernia with gangrene, without obstruction", "Hernia with gangrene"),
    ("Cut without foreign body of left knee", "Cut of left knee"),
    ("Knee ache (acute) (simple) NOS", "Knee ache"),
    ("Infection, site not specified", "Infection"),
    ("Sore knee", "Sore knee"),
  ],
)
def test_names_of_codes_are_said_plainly(name, plain):
  assert icd10cm.plainly(name) == plain
