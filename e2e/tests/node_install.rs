//! `docs/install.md` from its first command to its last, as a reader would type them, on real nodes: the commands come out of the
//! page, and what it says that the reader will see is looked for. `hack/e2e-node.sh` starts the cluster.

mod node_scene;

use node_scene::{
    BALANCER, KUBECTL, ONE, Running, TWO, announce, balance, must, pods, reached, run_folder, until, write,
};

/// A section of the page: its heading, the commands in its `sh` blocks and in its text, its `yaml` blocks.
#[derive(Debug, Default)]
struct Section {
    heading: String,
    commands: Vec<String>,
    manifests: Vec<String>,
}

/// What is left of the page.
struct Page(Vec<Section>);

impl Page {
    fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/install.md");
        let text = std::fs::read_to_string(path).unwrap();
        let mut sections = vec![Section::default()];
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let section = sections.last_mut().unwrap();
            if let Some(language) = line.strip_prefix("```") {
                let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
                match language {
                    "sh" => {
                        let block = block.join("\n").replace("\\\n", " ");
                        section.commands.extend(block.lines().map(str::to_owned));
                    }
                    "yaml" => section.manifests.push(block.join("\n")),
                    other => panic!("a block of {other:?}: nothing is known to do with it"),
                }
            } else if line.starts_with('#') {
                let heading = line.trim_start_matches(['#', ' ']).to_owned();
                sections.push(Section { heading, ..Section::default() });
            } else if !line.starts_with('|') {
                let spans = line.split('`').skip(1).step_by(2);
                let commands = spans.filter(|span| span.starts_with("kubectl ") || span.starts_with("cp "));
                section.commands.extend(commands.map(str::to_owned));
            }
        }
        Self(sections)
    }

    /// What there is to do in a section.
    fn take(&mut self, heading: &str) -> Section {
        let place = self.0.iter().position(|section| section.heading == heading);
        let section = self.0.remove(place.unwrap_or_else(|| panic!("the page has no {heading:?}")));
        assert!(!section.commands.is_empty(), "{heading} has no commands");
        section
    }
}

/// A command with what this cluster calls differently, and where the page asks the reader for a word of his own.
fn typed(command: &str, image: &str) -> String {
    let run = run_folder();
    [
        ("registry.gitlab.com/tak-os-platform/tak-os-containers/tak-os-ingress:TAG", image),
        ("/tmp/tak-os-ingress.yaml", &format!("{run}/walk.yaml")),
        ("SAVED.yaml", &format!("{run}/saved.yaml")),
        ("USER", "reader"),
        ("TOKEN", "token"),
        ("-n NS get secret NAME", "-n apps get secret login"),
    ]
    .into_iter()
    .fold(command.to_owned(), |command, (theirs, ours)| command.replace(theirs, ours))
}

fn follow(commands: &[String], image: &str) {
    for command in commands {
        must(&typed(command, image));
    }
}

/// Until no object has one of our names, in any kind that can be listed; Events are history.
fn nothing_is_left() {
    let kinds = "kubectl api-resources --verbs=list -o name | grep -v '^events' | paste -sd,";
    let columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name";
    let ours = format!("kubectl get $({kinds}) -A --no-headers -o {columns} | grep tak-os || true");
    until("nothing is left", "", &ours, str::is_empty);
}

#[test]
#[ignore = "needs two nodes: hack/e2e-node.sh"]
fn the_install_page_works_from_its_first_command_to_its_last() {
    // Other tests may have left a product.
    must("kubectl delete namespace tak-os-ingress --ignore-not-found");
    must("kubectl delete ingressclass,clusterrole,clusterrolebinding -l app=tak-os-ingress");
    nothing_is_left();
    let applications =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/node/apps.yaml")).unwrap();
    let applications: Vec<_> =
        applications.split("---\n").filter(|one| !one.contains("kind: Ingress")).collect();
    must(&format!("kubectl apply -f {}", write("walk-apps.yaml", &applications.join("---\n"))));
    must("kubectl -n apps delete ingress --all");
    must("kubectl -n apps rollout status deployment/my-app --timeout=120s");
    let mut page = Page::read();

    follow(&page.take("The image").commands, ONE);
    let by_hand = page.take("By hand");
    follow(&by_hand.commands, ONE);
    pods("{.status.containerStatuses[0].ready}", ["true"; 2]);
    let account =
        format!("{KUBECTL} get serviceaccount tak-os-ingress -o 'jsonpath={{.imagePullSecrets[*].name}}'");
    assert_eq!(must(&account), "pull", "applied again");
    // Orbit is not here: what is to be looked at after it has rendered the template is there all the same.
    let orbit = page.take("With Orbit");
    assert_eq!(orbit.manifests.len(), 1);
    let [service] = &orbit.commands[..] else { panic!("{orbit:?}") };
    assert!(must(service).contains("type: ClusterIP"));

    // Through the forwarded ports.
    let verify = page.take("Verify");
    let (forwards, others): (Vec<_>, Vec<_>) =
        verify.commands.iter().cloned().partition(|command| command.contains("port-forward"));
    let (curls, looks): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|command| command.starts_with("curl"));
    assert_eq!((forwards.len(), curls.len()), (1, 4));
    follow(&looks, ONE);
    let [route] = &verify.manifests[..] else { panic!("{verify:?}") };
    must(&format!("kubectl apply -f {}", write("walk-route.yaml", route)));
    let forward = Running::start("", &forwards[0]);
    for curl in curls {
        // What the page says behind the command is what comes.
        let wanted = match curl.split_once('#') {
            Some((_, comment)) if comment.trim().starts_with("OK: ") => "OK",
            Some(_) => "pod my-app-",
            None => "# HELP ",
        };
        let quiet = curl.replacen("curl", "curl -sS -m 3", 1);
        until(&curl, "", &quiet, |answer| answer.starts_with(wanted));
        println!("+ {curl}: {wanted}");
    }
    drop(forward);

    // And as clients come.
    follow(&page.take("Let clients in").commands, ONE);
    announce();
    balance(1);
    reached();

    // A Secret of the kind that is to be looked at: 32 bytes, and no line end.
    let login = "kubectl -n apps create secret generic login --dry-run=client -o yaml \
                 --from-literal=cookie_secret=$(head -c 32 /dev/zero | base64) | kubectl apply -f -";
    must(login);
    let upgrade = page.take("Upgrade");
    let (before, after): (Vec<_>, Vec<_>) =
        upgrade.commands.iter().cloned().partition(|command| !command.contains("rollout"));
    let [image, save, secret] = &before[..] else { panic!("{before:?}") };
    assert_eq!(must(&typed(image, ONE)), ONE);
    must(&typed(save, ONE));
    assert_eq!(must(&typed(secret, ONE)).trim(), "32");
    let new = || {
        let render = by_hand.commands.iter().find(|command| command.starts_with("make")).unwrap();
        must(&typed(&render.replace("OUT=", "OPTIONS=--type=LoadBalancer OUT="), TWO));
        must(&typed("kubectl apply -f /tmp/tak-os-ingress.yaml", TWO));
        follow(&after, TWO);
        pods("{.spec.containers[0].image}", [TWO; 2]);
        reached();
    };
    new();
    // Either way leads back.
    let back = page.take("Roll back").commands;
    for (number, way) in back.iter().enumerate() {
        if number > 0 {
            new();
        }
        must(&typed(way, ONE));
        follow(&after[..1], ONE);
        pods("{.spec.containers[0].image}", [ONE; 2]);
        reached();
    }

    let remove = page.take("Remove").commands;
    assert_eq!(remove.len(), 4, "{remove:?}");
    follow(&remove, ONE);
    nothing_is_left();
    let closed = format!(
        "curl -sS -m 3 --resolve app.example.com:80:{BALANCER} http://app.example.com/ || echo closed"
    );
    until("nobody answers", "-client", &closed, |answer| answer.contains("closed"));
    must("kubectl -n apps get ingress/my-app secret/login deployment/my-app service/my-app");

    let left: Vec<_> = page.0.iter().filter(|section| !section.commands.is_empty()).collect();
    assert!(left.is_empty(), "commands that nobody typed: {left:#?}");
}
