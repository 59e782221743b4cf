use super::*;

#[test]
fn tag_keeps_its_fields_and_rejects_large_values() {
    let tag = Tag::customer(0x0abc, 5).unwrap();
    assert_eq!((tag.bytes(), tag.id(), tag.priority()), ([0x81, 0, 0xaa, 0xbc], 0x0abc, 5));
    assert!(!tag.is_service());
    let tag = Tag::service(4094, 0).unwrap();
    assert_eq!((tag.bytes(), tag.is_service()), ([0x88, 0xa8, 0x0f, 0xfe], true));
    assert_eq!((Tag::customer(4095, 0), Tag::service(1, 8)), (None, None));
}

#[test]
fn tags_are_pushed_popped_and_replaced_at_the_front() {
    let (a, b, c) = (Tag::customer(1, 0).unwrap(), Tag::service(2, 0).unwrap(), Tag::service(3, 0).unwrap());
    let one = Tags::NONE.push(a).unwrap();
    let two = one.push(b).unwrap();
    assert_eq!((Tags::NONE.link_len(), one.link_len(), two.link_len()), (14, 18, 22));
    assert_eq!((two.outer(), two.inner(), two.push(c)), (Some(b), Some(a), None));
    assert_eq!((two.pop(), one.pop(), Tags::NONE.pop()), (one, Tags::NONE, Tags::NONE));
    assert_eq!((two.replace(c).outer(), two.replace(c).inner()), (Some(c), Some(a)));
    assert_eq!(Tags::NONE.replace(a), one);
}

#[test]
fn with_priorities_of_copies_priorities_by_position() {
    // The tags have priority 3 with drop eligibility, and priority 6.
    let (a, b) = (Tag([0x88, 0xa8, 0x70, 1]), Tag([0x81, 0, 0xc0, 2]));
    let (one, two) = (Tags::NONE.push(a).unwrap(), Tags::NONE.push(b).unwrap().push(a).unwrap());
    let new = Tags::NONE.push(Tag::customer(20, 0).unwrap()).unwrap();
    let new_two = new.push(Tag::service(30, 0).unwrap()).unwrap();
    let bytes = |tags: Tags| (tags.outer().map(Tag::bytes), tags.inner().map(Tag::bytes));
    let (outer, inner) = ([0x88, 0xa8, 0x70, 30], |high| [0x81, 0, high, 20]);
    assert_eq!(bytes(new_two.with_priorities_of(&two)), (Some(outer), Some(inner(0xc0))));
    assert_eq!(bytes(new_two.with_priorities_of(&one)), (Some(outer), Some(inner(0x70))));
    assert_eq!(new_two.with_priorities_of(&Tags::NONE), new_two);
    assert_eq!(bytes(new.with_priorities_of(&two)), (Some(inner(0x70)), None));
    assert_eq!(Tags::NONE.with_priorities_of(&two), Tags::NONE);
}

#[test]
fn single_tag_with_identifier_0_is_in_no_vlan() {
    let tag = |id| Tag::customer(id, 5).unwrap();
    let one = |id| Tags::NONE.push(tag(id)).unwrap();
    assert_eq!(Tags::NONE.ids(), [None, None]);
    assert_eq!((one(0).ids(), one(7).ids()), ([None, None], [Some(7), None]));
    assert_eq!(one(7).push(tag(0)).unwrap().ids(), [Some(0), Some(7)]);
}

#[test]
fn read_returns_the_tags_of_a_frame() {
    let frame = [&[7; 12][..], &[0x88, 0xa8, 0x20, 5, 0x81, 0, 0x10, 6, 8, 0]].concat();
    let tags = Tags::read(&frame, 22).unwrap();
    assert_eq!(tags.outer().map(Tag::bytes), Some([0x88, 0xa8, 0x20, 5]));
    assert_eq!(tags.inner().map(Tag::bytes), Some([0x81, 0, 0x10, 6])); // drop eligible
    assert_eq!(Tags::read(&frame, 18), Tags::NONE.push(tags.outer().unwrap()));
    assert_eq!(Tags::read(&frame, 14), Some(Tags::NONE));
    assert_eq!((Tags::read(&frame, 16), Tags::read(&frame[..19], 22)), (None, None));
    assert_eq!(Tags::read(&[0; 22], 18), None);
}
