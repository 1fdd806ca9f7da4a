"""The proxy's pure parts: keys, groups, E's request and answer, PD's request."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from proxy.errors import EngineFailure
from proxy.grouping import (
    Encoded,
    choose_encoder,
    encoder_request,
    group_items,
    read_answer,
)
from proxy.items import find_items
from proxy.rewrite import pd_request

A, B, C = ("data:image/png;base64," + letter * 8 for letter in "ABC")
GRID = {"image_grid_thw": [1, 4, 4]}


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def chat(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


def answer_for(items: list[Any], **entry: Any) -> dict[str, Any]:
    """What E answers when the key is the uuid."""
    params: dict[str, Any] = {}
    for position, item in enumerate(items):
        known = params.setdefault(item.uuid, {"item_indices": [], "metadata": GRID, **entry})
        known["item_indices"].append(position)
    return {"ec_transfer_params": params}


# Keys


def test_the_same_image_has_the_same_key_and_another_image_another():
    first, second, third = find_items(chat(image(A), image(A), image(B)))
    assert first.uuid == second.uuid != third.uuid


def test_an_image_keeps_its_key_from_one_request_to_the_next():
    assert find_items(chat(image(A)))[0].uuid == find_items(chat(text("other"), image(A)))[0].uuid


def test_a_url_as_a_string_and_as_an_object_is_the_same_image():
    plain = {"type": "image_url", "image_url": A}
    assert find_items(chat(plain))[0].uuid == find_items(chat(image(A)))[0].uuid


@pytest.mark.parametrize("option", ["mm_processor_kwargs", "media_io_kwargs"])
def test_different_processor_options_give_different_keys(option):
    keys = {
        find_items(chat(image(A), **options))[0].uuid
        for options in ({}, {option: {"x": {"a": 1}}}, {option: {"x": {"a": 2}}})
    }
    assert len(keys) == 3


def test_the_order_of_processor_options_does_not_matter():
    one = find_items(chat(image(A), mm_processor_kwargs={"a": 1, "b": 2}))
    other = find_items(chat(image(A), mm_processor_kwargs={"b": 2, "a": 1}))
    assert one[0].uuid == other[0].uuid


def test_a_users_own_uuid_is_kept():
    assert find_items(chat(image(A, uuid="mine")))[0].uuid == "mine"


def test_an_image_and_an_audio_clip_with_the_same_url_have_different_keys():
    clip = {"type": "audio_url", "audio_url": {"url": A}}
    one, other = find_items(chat(image(A), clip))
    assert one.uuid != other.uuid


def test_a_salt_changes_the_keys_of_remote_urls_only():
    remote = image("http://example.test/a.png")
    plain, salted = (find_items(chat(remote, image(A)), url_salt=salt) for salt in (None, "s"))
    assert plain[0].uuid != salted[0].uuid
    assert plain[1].uuid == salted[1].uuid


def test_every_kind_of_media_is_found_in_order_through_all_messages():
    request = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [text("a"), {"type": "video_url", "video_url": {"url": "v"}}]},
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}}],
            },
            {"role": "user", "content": [{"image_url": "bare"}, {"type": "audio_url", "audio_url": "u"}]},
        ]
    }
    items = find_items(request)
    assert [item.modality for item in items] == ["video", "audio", "image", "audio"]
    assert [item.index for item in items] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "messages", [None, "text", [None], [{"content": None}], [{"content": ["x", {"type": 1}]}]]
)
def test_a_malformed_request_has_no_items_and_reaches_pd_as_it_is(messages):
    request = {"messages": messages}
    items = find_items(request)
    assert items == []
    assert pd_request(request, items, Encoded(), rewrite=True) == (request, [])


# Groups


def test_occurrences_of_one_image_are_never_split_over_encoders():
    items = find_items(chat(*[image(url) for url in [A, B, C] * 5]))
    groups = group_items(items, ["http://e1", "http://e2", "http://e3"])
    assert sum(map(len, groups.values())) == 15
    homes: dict[str, set[str]] = {}
    for url, group in groups.items():
        for item in group:
            homes.setdefault(item.uuid, set()).add(url)
    assert all(len(urls) == 1 for urls in homes.values())


def test_when_an_encoder_goes_only_its_own_items_move():
    urls = ["http://e1", "http://e2", "http://e3"]
    before = {f"item{i}": choose_encoder(f"item{i}", urls) for i in range(200)}
    assert set(before.values()) == set(urls)
    for uuid, url in before.items():
        after = choose_encoder(uuid, urls[:2])
        assert after == url or url == urls[2]


# E's request


def test_the_encoder_gets_both_occurrences_n_and_the_processor_options_but_no_text():
    request = chat(
        image(A), text("secret"), image(A), n=3, temperature=0.5, stream=True, max_tokens=99,
        mm_processor_kwargs={"p": 1}, media_io_kwargs={"image": {"q": 2}}, stop=["x"],
    )  # fmt: skip
    items = find_items(request)
    body = encoder_request(request, items)
    assert body["messages"] == [{"role": "user", "content": [item.part for item in items]}]
    assert [part["uuid"] for part in body["messages"][0]["content"]] == [items[0].uuid] * 2
    assert "secret" not in str(body)
    assert body["n"] == 3
    assert body["max_tokens"] == body["max_completion_tokens"] == 1
    assert body["stream"] is False
    assert body["mm_processor_kwargs"] == {"p": 1}
    assert body["media_io_kwargs"] == {"image": {"q": 2}}
    assert "stop" not in body


# E's answer


def test_item_indices_of_every_group_are_counted_through_pds_request():
    items = find_items(chat(image(A), image(B), image(A), image(C)))
    merged = Encoded()
    for group in ([items[1]], [items[0], items[2], items[3]]):
        merged.add(read_answer(group, answer_for(group)))
    assert {key: entry["item_indices"] for key, entry in merged.params.items()} == {
        items[0].uuid: [0, 2],
        items[1].uuid: [1],
        items[3].uuid: [3],
    }
    assert set(merged.metadata) == {0, 1, 2, 3}


def test_what_a_connector_adds_to_an_entry_is_passed_on_untouched():
    items = find_items(chat(image(A)))
    entry = read_answer(items, answer_for(items, token=[7, 2], peer={"host": "h"})).params[items[0].uuid]
    assert entry == {"item_indices": [0], "metadata": GRID, "token": [7, 2], "peer": {"host": "h"}}


def test_a_key_that_is_not_the_uuid_is_matched_by_its_positions():
    items = find_items(chat(image(A), image(B)))
    answer = {"ec_transfer_params": {"folded": {"item_indices": [1], "metadata": GRID}}}
    assert read_answer(items, answer).metadata == {1: GRID}


@pytest.mark.parametrize("indices", [[2], [-1], ["0"], None, [True]])
def test_positions_outside_es_request_match_nothing_but_the_entry_is_passed_on(indices):
    items = find_items(chat(image(A), image(B)))
    answer = {"ec_transfer_params": {"folded": {"item_indices": indices, "metadata": GRID}}}
    encoded = read_answer(items, answer)
    assert encoded.metadata == {}
    assert encoded.params == answer["ec_transfer_params"]


def test_positions_are_not_trusted_when_the_engine_adds_items_of_its_own():
    items = find_items(chat(image(A)))
    answer = {"ec_transfer_params": {"folded": {"item_indices": [0], "metadata": GRID}}}
    assert read_answer(items, answer, positions_known=False).metadata == {}


@pytest.mark.parametrize("metadata", [None, {}, {"x": []}, {"x": [[1]]}, {"x": "AAAA"}, {"x": [True]}, [1]])
def test_metadata_that_pd_would_not_take_counts_as_none(metadata):
    items = find_items(chat(image(A)))
    assert read_answer(items, answer_for(items, metadata=metadata)).metadata == {}


@pytest.mark.parametrize("answer", [None, [], {}, {"ec_transfer_params": None}, {"ec_transfer_params": []}])
def test_an_answer_without_params_reports_nothing(answer):
    assert read_answer(find_items(chat(image(A))), answer) == Encoded()


# PD's request


def encoded_for(items: list[Any], metadata: dict[int, dict[str, Any]]) -> Encoded:
    return Encoded(params={item.uuid: {"item_indices": [item.index]} for item in items}, metadata=metadata)


def test_an_item_with_metadata_goes_to_pd_without_its_pixels():
    request = chat(text("what is"), image(A, detail="auto", note="kept for the template"), text("?"))
    items = find_items(request)
    body, bare = pd_request(request, items, encoded_for(items, {0: GRID}), rewrite=True)
    assert body["messages"][0]["content"] == [
        text("what is"),
        {
            "type": "image_embeds",
            "image_embeds": GRID,
            "uuid": items[0].uuid,
            "note": "kept for the template",
        },
        text("?"),
    ]
    assert bare == items
    assert body["ec_transfer_params"] == {items[0].uuid: {"item_indices": [0]}}


def test_an_item_without_metadata_keeps_its_pixels_with_the_uuid_that_e_was_given():
    request = chat(image(A))
    items = find_items(request)
    body, bare = pd_request(request, items, encoded_for(items, {}), rewrite=True)
    assert body["messages"][0]["content"] == [image(A, uuid=items[0].uuid)]
    assert bare == []
    assert body["ec_transfer_params"]


def test_one_image_without_metadata_keeps_the_pixels_of_all_images_but_not_of_the_audio():
    clip = {"type": "audio_url", "audio_url": {"url": "u"}}
    request = chat(image(A), image(B), clip)
    items = find_items(request)
    lengths = {"audio_num_tokens": [5]}
    body, bare = pd_request(request, items, encoded_for(items, {0: GRID, 2: lengths}), rewrite=True)
    kinds = [part["type"] for part in body["messages"][0]["content"]]
    assert kinds == ["image_url", "image_url", "audio_embeds"]
    assert bare == [items[2]]


def test_images_whose_metadata_have_different_fields_keep_their_pixels():
    request = chat(image(A), image(B))
    items = find_items(request)
    assert pd_request(request, items, encoded_for(items, {0: GRID, 1: {"other": [1]}}), rewrite=True)[1] == []


@pytest.mark.parametrize(
    "more", [{"use_beam_search": True}, {"mm_processor_kwargs": {"use_audio_in_video": True}}]
)
def test_beam_search_and_audio_from_video_keep_their_media(more):
    request = chat(image(A), **more)
    items = find_items(request)
    assert pd_request(request, items, encoded_for(items, {0: GRID}), rewrite=True)[1] == []


def test_no_rewrite_keeps_the_pixels_and_still_sends_es_params_on():
    request = chat(image(A))
    items = find_items(request)
    body, bare = pd_request(request, items, encoded_for(items, {0: GRID}), rewrite=False)
    assert bare == []
    assert body["messages"][0]["content"] == [image(A, uuid=items[0].uuid)]
    assert body["ec_transfer_params"] == {items[0].uuid: {"item_indices": [0]}}


def test_the_clients_request_is_not_changed_so_that_it_can_be_sent_again():
    request = chat(image(A), image(B), stream=True)
    before = copy.deepcopy(request)
    items = find_items(request)
    pd_request(request, items, encoded_for(items, {0: GRID, 1: GRID}), rewrite=True)
    encoder_request(request, items)
    assert request == before


# Errors


def test_an_error_says_which_engine_answered_what():
    body = b'{"error": {"message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}}'
    error = EngineFailure.from_answer("encoder", "http://e1", 400, body).as_error()
    assert (error.status, error.sentence) == (400, "encoder http://e1 answered 400: too long")
    assert error.body()["error"]["type"] == "BadRequestError"
    assert error.body()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b'"x"', b'{"error": "x"}', b'{"detail": "x"}', b"\xff"]
)
def test_an_error_body_of_any_form_can_be_quoted(body):
    assert (
        EngineFailure.from_answer("PD", "http://p", 502, body)
        .sentence()
        .startswith("PD http://p answered 502: ")
    )
