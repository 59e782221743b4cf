use super::*;

#[test]
fn a_tag_holds_its_fields_and_refuses_what_does_not_fit() {
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
fn the_tags_of_a_frame_are_read_as_they_stand() {
    let frame = [&[7; 12][..], &[0x88, 0xa8, 0x20, 5, 0x81, 0, 0x10, 6, 8, 0]].concat();
    let tags = Tags::read(&frame, 22).unwrap();
    assert_eq!(tags.outer().map(Tag::bytes), Some([0x88, 0xa8, 0x20, 5]));
    assert_eq!(tags.inner().map(Tag::bytes), Some([0x81, 0, 0x10, 6])); // drop eligible
    assert_eq!(Tags::read(&frame, 18), Tags::NONE.push(tags.outer().unwrap()));
    assert_eq!(Tags::read(&frame, 14), Some(Tags::NONE));
    assert_eq!((Tags::read(&frame, 16), Tags::read(&frame[..19], 22)), (None, None));
    assert_eq!(Tags::read(&[0; 22], 18), None);
}
