use super::*;

fn reach(text: &str, vhost: &str) -> Option<Reach> {
    Grants::parse(text).unwrap().reach("shop", vhost).cloned()
}

fn prefixes(names: &[&str]) -> Option<Reach> {
    Some(Reach::Prefixes(names.iter().map(|name| (*name).to_owned()).collect()))
}

#[test]
fn the_example_reads_as_it_says() {
    let text = "shop=/shop:orders.+carts.,/shop-eu; billing=/billing";
    assert_eq!(reach(text, "/shop"), prefixes(&["carts.", "orders."]));
    assert_eq!(reach(text, "/shop-eu"), Some(Reach::Whole));
    assert_eq!(reach(text, "/billing"), None);
    assert_eq!(reach(text, "/"), None);
    assert_eq!(Grants::parse(text).unwrap().reach("billing", "/billing"), Some(&Reach::Whole));
}

#[test]
fn blanks_around_names_and_empty_entries_do_not_count() {
    assert_eq!(
        reach(" ; shop = /shop : orders. + carts. , /eu ;", "/shop"),
        prefixes(&["carts.", "orders."])
    );
    assert_eq!(reach(" ; shop = /shop : orders. + carts. , /eu ;", "/eu"), Some(Reach::Whole));
    assert_eq!(Grants::parse(" "), Ok(Grants::default()));
}

#[test]
fn several_entries_of_a_namespace_add_up() {
    assert_eq!(reach("shop=/s:a; shop=/s:b", "/s"), prefixes(&["a", "b"]));
    assert_eq!(reach("shop=/s:a,/s", "/s"), Some(Reach::Whole));
    assert_eq!(reach("shop=/s,/s:a", "/s"), Some(Reach::Whole));
}

#[test]
fn encoded_characters_are_names_and_not_separators() {
    assert_eq!(reach("shop=%2Fa%2Cb%3Bc:x%3Ay%3Dz%2B%20%25", "/a,b;c"), prefixes(&["x:y=z+ %"]));
    assert_eq!(reach("shop=/%C3%A9:é", "/é"), prefixes(&["é"]));
    assert_eq!(encode("a b,c;d:e=f+g%h"), "a%20b%2Cc%3Bd%3Ae%3Df%2Bg%25h");
}

#[test]
fn one_malformed_entry_makes_the_whole_text_grant_nothing() {
    let cases = [
        ("shop", "names no vhost"),
        ("shop=", "empty vhost or prefix"),
        ("shop=/s:", "empty vhost or prefix"),
        ("shop=/s:a+", "empty vhost or prefix"),
        ("shop=/s,", "empty vhost or prefix"),
        ("shop=:a", "empty vhost or prefix"),
        ("=/s", "the name of one namespace"),
        ("*=/s", "the name of one namespace"),
        ("Shop=/s", "the name of one namespace"),
        ("shop billing=/s", "the name of one namespace"),
        ("shop=/s:a:b", "separator inside"),
        ("shop=/s+a", "separator inside"),
        ("shop=/s=a", "separator inside"),
        ("shop=/a b", "blank inside"),
        ("shop=/a\tb", "blank inside"),
        ("shop=/s%2", "no encoded byte"),
        ("shop=/s%zz", "no encoded byte"),
        ("shop=/s%+1", "no encoded byte"),
        ("shop=/s%FF", "no text"),
    ];
    for (entry, problem) in cases {
        let texts =
            [(entry.to_owned(), 1), (format!("shop=/good; {entry}"), 2), (format!("{entry}; a=/b"), 1)];
        for (text, number) in texts {
            let error = Grants::parse(&text).unwrap_err();
            assert!(error.to_string().contains(problem), "{text}: {error}");
            assert_eq!(error.entry, number, "{text}");
        }
    }
}

#[test]
fn a_prefix_is_compared_byte_by_byte() {
    let reach = prefixes(&["orders."]).unwrap();
    for (name, covered) in
        [("orders.", true), ("orders.queue", true), ("orders", false), ("Orders.queue", false), ("", false)]
    {
        assert_eq!(reach.covers(name), covered, "{name}");
    }
}

#[test]
fn a_list_of_namespaces_is_trimmed_and_takes_a_star() {
    for (list, allowed) in [
        ("", false),
        ("shop", true),
        ("a, shop ,b", true),
        ("a,\tshop", true),
        ("*", true),
        ("a, *", true),
        ("shops", false),
        ("sh*", false),
        ("shop;a", false),
    ] {
        assert_eq!(lists_namespace(list, "shop"), allowed, "{list:?}");
    }
}

#[test]
fn what_is_missing_names_the_narrowest_grant() {
    let uses = [
        Use::queue("source.queue.name", "orders"),
        Use::queue("deadLetter.name", "orders.dlq"),
        Use::exchange("source.exchange.name", "events, all"),
    ];
    let missing = Grants::default().missing("shop", "/s", &uses).unwrap();
    assert!(missing.vhost);
    assert_eq!(missing.remedy("shop", "/s"), "shop=/s:events%2C%20all+orders");
    let some = Grants::parse("shop=/s:orders").unwrap();
    let missing = some.missing("shop", "/s", &uses).unwrap();
    assert_eq!((missing.vhost, missing.uses.len()), (false, 1));
    assert_eq!(missing.remedy("shop", "/s"), "shop=/s:events%2C%20all");
    assert_eq!(Grants::parse("shop=/s").unwrap().missing("shop", "/s", &uses), None);
}
