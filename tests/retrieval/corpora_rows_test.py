"""Parsers of tables and of a user's own folder.

MedRAG, PMC-VQA and CLIMB are read from synthetic files of their shape alone.
"""

import json

import pytest

from varl_jax.retrieval.corpora import SOURCES
from varl_jax.retrieval.corpora.files import CorpusError, find_files
from varl_jax.retrieval.corpora.piece import MOST, cut


def read(source, file):
  return list(SOURCES[source].passages(file))


def lines(path, *rows):
  path.write_text(
    "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
  )
  return path


def test_medrag_keeps_ids_and_chunks(tmp_path):
  file = lines(
    tmp_path / "c.jsonl",
    {
      "id": "article-1_0",
      "title": "Knee -- Stages",
      "content": "Sore.\nMore.",
      "contents": "Knee -- Stages. Sore.\nMore.",
    },
    {"id": "article-1_1", "title": "", "content": "  "},
  )
  [found] = read("medrag_textbooks", file)
  assert found.passage_id == "medrag_textbooks:article-1_0"
  assert (found.title, found.text) == ("Knee -- Stages", "Sore.\nMore.")
  with pytest.raises(CorpusError, match=r"d\.jsonl:1 has no id"):
    read("medrag_pubmed", lines(tmp_path / "d.jsonl", {"title": "x"}))


def test_a_torn_last_line_is_named(tmp_path):
  file = lines(tmp_path / "c.jsonl", {"id": "1", "content": "a"})
  file.write_text(file.read_text() + '{"id": "2", "cont')
  with pytest.raises(CorpusError, match=r"c\.jsonl:2 .*may be truncated"):
    read("medrag_textbooks", file)
  file.write_bytes(b'{"id": "1", "content": "\xff"}\n')
  with pytest.raises(CorpusError, match=r"c\.jsonl is not UTF-8"):
    read("medrag_textbooks", file)


def pubmedqa(count):
  return {
    str(100 + i): {
      "QUESTION": f"Does {'word ' * i}help?",
      "CONTEXTS": ["It was\n tried.", 'It {did} \\ "so" \u00fc.'],
      "LABELS": ["BACKGROUND", "RESULTS"],
      "MESHES": ["Knee"],
      "YEAR": "2011",
      "final_decision": "yes",
      "LONG_ANSWER": f"It helps. {'long ' * i}",
    }
    for i in range(count)
  }


def test_pubmedqa_is_read_member_by_member(tmp_path, monkeypatch):
  from varl_jax.retrieval.corpora import rows

  monkeypatch.setattr(rows, "_BLOCK", 37)
  tree = pubmedqa(30)
  for indent in (None, 1):
    file = tmp_path / "q.json"
    file.write_text(json.dumps(tree, indent=indent), encoding="utf-8")
    found = read("pubmedqa", file)
    assert [p.passage_id for p in found] == [f"pubmedqa:{k}" for k in tree]
    assert found[0].title == "Does help?"
    assert found[0].text == (
      'BACKGROUND: It was tried.\nRESULTS: It {did} \\ "so" ü.\n'
      "CONCLUSION: It helps."
    )
    assert found[0].licence == "MIT"
  text = file.read_text()
  for share in (0.1, 0.5, 0.99):
    file.write_text(text[: int(len(text) * share)])
    with pytest.raises(CorpusError, match=r"q\.json is truncated"):
      read("pubmedqa", file)
  file.write_text('{"1": {"QUESTION": "x"}}')
  with pytest.raises(CorpusError, match="entry 1 lacks"):
    read("pubmedqa", file)


def test_pmc_vqa_gives_a_caption_a_figure(tmp_path):
  file = tmp_path / "v.csv"
  file.write_text(
    "index,Figure_path,Caption,Question,Choice A,Choice B,Answer,Answer_label\n"
    '0,a.jpg," A knee, ""sore"",\n in two views ",What?,A: x,B: y,x,A\n'
    "1,a.jpg,again the same,Where?,A: x,B: y,y,B\n"
    "2,b.jpg,,Where?,A: x,B: y,y,B\n",
    encoding="utf-8",
  )
  [found] = read("pmc_vqa", file)
  assert found.passage_id == "pmc_vqa:a.jpg"
  assert found.text == 'A knee, "sore", in two views'
  file.write_text(file.read_text() + "3,c.jpg,a cap")
  with pytest.raises(CorpusError, match=r"v\.csv:6 has other columns"):
    read("pmc_vqa", file)
  file.write_text("a,b\n1,2\n")
  with pytest.raises(CorpusError, match="it is no PMC-VQA"):
    read("pmc_vqa", file)


def test_climb_is_read_where_it_has_text(tmp_path):
  file = lines(
    tmp_path / "r.jsonl",
    {"study_id": "s1", "Findings": "No\n effusion.", "impression": "Clear."},
    {"study_id": "s2", "path": "x.png"},
  )
  [found] = read("climb", file)
  assert found.passage_id == "climb:r_s1_0"
  assert found.text == "Findings: No effusion.\nImpression: Clear."
  (tmp_path / "i.csv").write_text("path,label\nx.png,1\n")
  with pytest.raises(CorpusError, match="its columns are label, path"):
    read("climb", tmp_path / "i.csv")


def test_a_folder_of_markdown_is_cut_at_headings(tmp_path):
  file = tmp_path / "notes.md"
  file.write_text(
    "Before.\n\n# Knee\nIt\nhurts.\n\n- rest\n- ice\n## Dose ##\n5 mg\n"
    "```\n# no heading\n```\n# Elbow\nToo.\n",
    encoding="utf-8",
  )
  found = read("folder", file)
  assert [(p.title, p.text) for p in found] == [
    ("notes", "Before."),
    ("Knee", "It hurts.\n- rest\n- ice"),
    ("Knee -- Dose", "5 mg ``` # no heading ```"),
    ("Elbow", "Too."),
  ]
  plain = tmp_path / "plain.txt"
  plain.write_text("# a\nb\n\nc")
  [text] = read("folder", plain)
  assert (text.title, text.text) == ("plain", "# a b\nc")


def test_a_folder_of_lines_takes_any_names(tmp_path):
  file = lines(
    tmp_path / "own.jsonl",
    {"text": "A rule. " * 200, "title": "Rule", "url": "https://example.org"},
    {"id": 7, "content": "Another."},
  )
  found = read("folder", file)
  assert found[-1].passage_id == "folder:7"
  assert found[0].passage_id == "folder:own_1_0"
  assert " ".join(p.text for p in found[:-1]).split() == ["A", "rule."] * 200
  assert max(len(p.text) for p in found) <= MOST
  with pytest.raises(CorpusError, match="no text; give each line text"):
    read("folder", lines(tmp_path / "no.jsonl", {"id": "x"}))


def _pdf(text):
  """A PDF of one page, written by hand."""
  stream = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET".encode()
  parts = [
    b"<< /Type /Catalog /Pages 2 0 R >>",
    b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
    b" /Resources << /Font << /F1 5 0 R >> >> >>",
    b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
  ]
  made, places = b"%PDF-1.4\n", []
  for number, part in enumerate(parts, 1):
    places.append(len(made))
    made += b"%d 0 obj\n%s\nendobj\n" % (number, part)
  table = b"".join(b"%010d 00000 n \n" % place for place in places)
  return made + (
    b"xref\n0 6\n0000000000 65535 f \n%strailer\n<< /Size 6 /Root 1 0 R >>\n"
    b"startxref\n%d\n%%%%EOF\n" % (table, len(made))
  )


def test_a_folder_of_pdfs_is_read_page_by_page(tmp_path):
  pytest.importorskip("pypdf")
  file = tmp_path / "rule.pdf"
  file.write_bytes(_pdf("A knee that hurts needs rest."))
  [found] = read("folder", file)
  assert found.title == "rule -- page 1"
  assert found.text == "A knee that hurts needs rest."
  file.write_bytes(_pdf(""))
  with pytest.raises(CorpusError, match="only pictures"):
    read("folder", file)
  file.write_bytes(b"%PDF-1.4\nnothing")
  with pytest.raises(CorpusError, match=r"rule\.pdf is truncated or no PDF"):
    read("folder", file)


def test_texts_are_cut_without_loss():
  text = "Short. " + "x" * 2500 + " " + "A sentence of words. " * 100
  made = cut([text, "", "tail", "end"])
  assert max(map(len, made)) <= MOST
  assert "".join("".join(made).split()) == "".join((text + "tailend").split())
  assert cut([]) == []


def test_files_are_found_by_their_endings(tmp_path):
  (tmp_path / "b").mkdir()
  for name in ("z.XML", "b/a.xml", "c.txt"):
    (tmp_path / name).write_text("x")
  found = find_files(tmp_path, (".xml",))
  assert [f.name for f in found] == ["a.xml", "z.XML"]
  with pytest.raises(CorpusError, match="holds no file that ends in"):
    find_files(tmp_path, (".zip",))
  with pytest.raises(CorpusError, match="does not exist"):
    find_files(tmp_path / "none", (".xml",))


def test_every_collection_is_of_known_sources():
  from varl_jax.retrieval.collection import COLLECTIONS

  for sources in COLLECTIONS.values():
    assert set(sources) <= set(SOURCES)
  assert set(COLLECTIONS["seeds"]) < set(COLLECTIONS["grounding"])
  assert "pubmed" in COLLECTIONS["solver_search"]
  assert "pubmed" not in COLLECTIONS["grounding"]
